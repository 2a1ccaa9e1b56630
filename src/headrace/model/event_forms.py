"""The forms of an event, each declared with its class: its fields, its row in the event log, the state of its
flow or view, and its line on a terminal. The columns of the log have the types of that of Lakeflow."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar, Literal, Protocol, dataclass_transform

from headrace.model.names import TableName
from headrace.model.texts import counted, duration_text

Level = Literal["DEBUG", "INFO", "WARN", "ERROR", "METRICS"]
State = Literal[
    "waiting", "starting", "running", "retrying", "up to date", "stopped", "skipped", "failed",
]  # fmt: skip
"""The states of a flow or a view."""


def headline(error: Mapping[str, Any]) -> str:
    """Code and summary of an error, as `HeadraceError.to_dict` gives it."""
    return f"[{error.get('code')}] {error.get('summary')}"


class _Template(string.Formatter):
    """Fills in the fields of an event: ``{error}``, ``{wait_s:duration}``, ``{rows:row}`` for 1,200 rows."""

    def __init__(self, event: Event) -> None:
        self._event = event

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return getattr(self._event, str(key))

    def format_field(self, value: Any, format_spec: str) -> str:
        match value, format_spec:
            case Mapping(), "":
                return headline(value)
            case tuple(), "":
                return ", ".join(map(str, value))
            case _, "duration":
                return duration_text(value or 0.0)
            case int() | tuple(), noun if noun.isalpha():
                return counted(value if isinstance(value, int) else len(value), noun)
        return format(value, format_spec)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
class _Declared:
    """Makes each class below it a frozen dataclass with keyword arguments."""

    log_type: ClassVar[str] = "flow_progress"  # its type in the event log
    level: ClassVar[Level] = "INFO"
    is_notable: ClassVar[bool] = False  # whether its line is also shown above the live table
    state: ClassVar[State | None] = None  # the state of its flow or view from now on
    # Its details in the event log, as words: ``batch`` is a field of the event, ``status=IDLE`` a text, and
    # ``look={what}`` a field with another name.
    details: ClassVar[str] = ""
    message: ClassVar[str] = ""  # a template; the event log keeps no event without a message
    line: ClassVar[str] = ""  # a template for its line on a terminal, without the subject; empty for no line

    def __init_subclass__(cls, **declared: Any) -> None:
        for name, value in declared.items():
            setattr(cls, name, value)
        dataclass(frozen=True, kw_only=True)(cls)


class Event(_Declared):
    """Something that happened in one update."""

    update: str
    at: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def severity(self) -> Level:
        """The level of this event; most events have the level of their class."""
        return self.level

    @property
    def subject(self) -> str | TableName:
        """The flow, table or pipeline that the event is about, with which its line begins."""
        return ""

    def fill(self, template: str) -> str:
        """A template with the values of this event; the last value can be empty."""
        return _Template(self).format(template).rstrip("; ")

    def build_details(self) -> dict[str, Any]:
        found = {}
        for word in self.details.split():
            key, _, text = word.partition("=")
            is_field = not text or text.startswith("{")
            found[key] = getattr(self, text.strip("{}") or key) if is_field else text
        return found


class FlowEvent(Event):
    flow: str
    dataset: TableName

    @property
    def subject(self) -> str | TableName:
        return self.flow


class TableEvent(Event):
    dataset: TableName

    @property
    def subject(self) -> TableName:
        return self.dataset


class Emitter(Protocol):
    """Takes events; called from several threads."""

    def __call__(self, event: Event) -> None: ...


Row = dict[str, Any]
"""A row of the event log, by column."""

_TEXT, _NUMBER = "string", "long"
_FRAME = {"declaring_class": _TEXT, "method_name": _TEXT, "file_name": _TEXT, "line_number": _NUMBER}
_COLUMNS: Mapping[str, Any] = {
    "id": _TEXT,
    "sequence": {"data_plane_id": {"instance": _TEXT, "seq_no": _NUMBER}, "control_plane_seq_no": _NUMBER},
    "origin": {
        "cloud": _TEXT,
        "region": _TEXT,
        "org_id": _NUMBER,
        "pipeline_id": _TEXT,
        "pipeline_name": _TEXT,
        "pipeline_type": _TEXT,
        "cluster_id": _TEXT,
        "update_id": _TEXT,
        "maintenance_id": _TEXT,
        "table_id": _TEXT,
        "dataset_name": _TEXT,
        "sink_name": _TEXT,
        "flow_id": _TEXT,
        "flow_name": _TEXT,
        "batch_id": _NUMBER,
        "request_id": _TEXT,
        "host": _TEXT,
        "materialization_name": _TEXT,
    },
    "timestamp": "timestamp",
    "message": _TEXT,
    "level": _TEXT,
    "maturity_level": _TEXT,
    "error": {"fatal": "boolean", "exceptions": [{"class_name": _TEXT, "message": _TEXT, "stack": [_FRAME]}]},
    "details": _TEXT,
    "event_type": _TEXT,
}


def event_columns() -> dict[str, Any]:
    """The schema of the event log in the JSON form that Spark and Delta share."""
    return _struct(_COLUMNS)


def _struct(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "struct",
        "fields": [
            {"name": name, "type": _type(kind), "nullable": True, "metadata": {}}
            for name, kind in fields.items()
        ],
    }


def _type(kind: Any) -> Any:
    match kind:
        case str():
            return kind
        case [element]:
            return {"type": "array", "elementType": _type(element), "containsNull": True}
        case _:
            return _struct(kind)
