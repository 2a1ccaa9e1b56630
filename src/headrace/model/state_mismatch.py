"""Why the state of a checkpoint does not fit a query, from Spark's message."""

from __future__ import annotations

import re
from dataclasses import dataclass

_CONDITION = re.compile(
    r"\[(STATE_STORE_(?:KEY|VALUE)_SCHEMA_NOT_COMPATIBLE"
    r"|STREAMING_STATEFUL_OPERATOR_(?:NOT_MATCH_IN_STATE_METADATA|MISSING_STATE_DIRECTORY))(?:\.\w+)?\]"
)
_SCHEMAS = re.compile(
    r"Existing (?:key|value)_schema=(StructType.*?)\s+and new (?:key|value)_schema=(StructType.*?)\.?\s*"
    r"(?:If you want|$)",
    re.DOTALL,
)
_OPERATORS = re.compile(r"OperatorName: (\w+)")
_LIST = re.compile(r"Stateful operators in (?:the metadata|current batch): \[(.*?)\]", re.DOTALL)
_NAMES = {
    "stateStoreSave": "an aggregation",
    "sessionWindowStateStoreSaveExec": "an aggregation by session windows",
    "sessionWindowStateStoreSave": "an aggregation by session windows",
    "dedupe": "dropDuplicates",
    "dedupeWithinWatermark": "dropDuplicatesWithinWatermark",
    "symmetricHashJoin": "a join of streams",
    "globalLimit": "a limit",
}
_LONGEST = 300


@dataclass(frozen=True, kw_only=True)
class StateMismatch:
    """Why the state of a checkpoint does not fit a query."""

    condition: str  # spark's name of the problem
    was: str
    now: str

    def lines(self) -> tuple[str, ...]:
        return (f"the checkpoint has {self.was}", f"the query needs {self.now}")


def find_mismatch(message: str) -> StateMismatch | None:
    found = _CONDITION.search(message)
    if found is None:
        return None
    condition = found[1]
    text = message[found.end() :]
    if "_SCHEMA_" in condition:
        schemas = _SCHEMAS.search(text)
        what = "the state keys" if "_KEY_" in condition else "the state values"
        was, now = (f"{what} {_columns(one)}" for one in (schemas.groups() if schemas else ("", "")))
    elif condition.endswith("MISSING_STATE_DIRECTORY"):
        was, now = "no state", _operators((_LIST.search(text) or ("", ""))[1])
    else:
        lists = [*_LIST.findall(text), "", ""]
        was, now = _operators(lists[0]), _operators(lists[1])
    return StateMismatch(condition=condition, was=was, now=now)


def _operators(text: str) -> str:
    names = [_NAMES.get(name, name) for name in _OPERATORS.findall(text)]
    return f"the state of {', '.join(names)}" if names else "no state"


def _columns(schema: str) -> str:
    """The columns of a store, from Spark's ``StructType(StructField(name,StringType,true),..)``."""
    text = " ".join(schema.split())
    if "ArrayType" not in text and "MapType" not in text:
        text = re.sub(r"StructField\((.+?),", r"\1 ", text)
        text = re.sub(r",(?:true|false)\)", "", text)
        text = re.sub(r"(\w+)Type\b", lambda kind: kind[1].upper(), text)
        text = re.sub(r"^STRUCT(?=\()", "", text).replace(",", ", ")
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
