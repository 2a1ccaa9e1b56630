"""Gives failures of queries, and of the conditions of expectations, their error codes."""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

from headrace import errors
from headrace.contracts.expectations import FAILED
from headrace.errors import NOT_COMMITTED, ONE_PROCESS, HeadraceError, text_of
from headrace.model.declarations import (
    AppendFlow,
    AutoCdcFlow,
    Expectation,
    RefreshFlow,
    StreamingFlow,
    TemporaryView,
)
from headrace.model.project import ProjectSettings
from headrace.model.ranges import SourceRange
from headrace.plan.spark_errors import explain_failure, find_missing
from headrace.plan.stages import Declared
from headrace.runtime.defaults import is_local
from headrace.sources.kind import FailedQuery
from headrace.sources.records import BadRecord
from headrace.sources.registry import KINDS, kind_of, show_record
from headrace.sources.source import Source
from headrace.storage.log_damage import find_damage, find_damage_named
from headrace.syntax.locations import find_raised, innermost, return_location

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


_TRANSIENT = re.compile(
    r"TimeoutException|Connection refused|SocketTimeout|No route to host|FAILED_TO_FETCH"
    r"|ConcurrentAppendException|MetadataChangedException|ProtocolChangedException"
    r"|ConcurrentWriteException|DELTA_CONCURRENT|DELTA_METADATA_CHANGED|DELTA_PROTOCOL_CHANGED"
    r"|The error could be transient - restart your query"
    + "".join(f"|{kind.transient}" for kind in KINDS if kind.transient)
)


_UNREADABLE = re.compile(
    # A file of a log that is missing means a log that was cleaned; the whole log is missing with its disk.
    r"^[^\n]*_delta_log (?:does not exist|\(No such file or directory\))"
    r"|(?:DELTA_PATH_DOES_NOT_EXIST|DELTA_TABLE_NOT_FOUND|DELTA_MISSING_DELTA_TABLE)[^\n]*"
    r"|java\.(?:io|nio)\.[^\n]*(?:Permission denied|Input/output error|Stale file handle|not connected\))"
    # Hadoop sets the permissions of a file that it has just created, and whose folder is gone.
    r"|ExitCodeException exitCode=\d+: chmod: cannot access [^\n]*"
    r"|(?:java\.nio\.file\.AccessDenied|org\.apache\.hadoop\.[\w.]*AccessControl)Exception: [^\n]*"
    # Hadoop's client of S3 has repeated its request before it gives up. Its `RemoteFileChangedException` of a
    # write says that another writer was first; of a read, that the file was replaced since it was listed.
    r"|org\.apache\.hadoop\.fs\.s3a\.(?!RemoteFileChanged)\w+Exception: [^\n]*"
    r"|RemoteFileChangedException: (?:re-?open|open|read\w*|GET)\b[^\n]*"
    r"|software\.amazon\.awssdk\.core\.exception\.\w+Exception: [^\n]*"
    # Spark's text of a failed query begins with the message of Hadoop's exception, without its class.
    r"|software\.amazon\.awssdk\.services\.s3\.model\."
    r"(?:NoSuchBucketException: |\w+Exception: [^\n]*Status Code: (?:403|429|5\d\d))[^\n]*",
    re.MULTILINE,
)
"""Messages about a table, checkpoint or file whose disk or store does not answer, or refuses this process."""
_TAKEN_OVER = re.compile(
    r"CONCURRENT_STREAM_LOG_UPDATE|CONCURRENT_QUERY|Concurrent update to the log"
    # In a bucket, Spark meets the batch of the other process only as it writes its own.
    r"|Multiple streaming queries are concurrently using"
)
_FAILED_IN_VIEW = re.compile(re.escape(FAILED) + r'("(?:[^"\\]|\\.)*"): (\{.*?\})(?:\n|$| SQLSTATE)')
_OF_LOG = re.compile(r"_delta_log|DELTA_|Malformed records are detected|is not a Parquet file|JsonParse")
"""Messages that a damaged log can cause; other failures look at no log."""
_MALFORMED = re.compile(r"MALFORMED_RECORD_IN_PARSING|Malformed records are detected in record parsing")
_VIOLATED = re.compile(
    r"\[DELTA_(?:VIOLATE_CONSTRAINT_WITH_VALUES|NOT_NULL_CONSTRAINT_VIOLATED|EXCEED_CHAR_VARCHAR_LIMIT)\] "
    r"((?:CHECK|NOT NULL|Value) [^\n]*)"
)
_BY_ROW = " violated by row with values"
_ROW = re.compile(r"^ - (\S+) : (.*)$", re.MULTILINE)
_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
_CAUSE = 100
"""Characters of a message that go into the summary of an error."""
_MESSAGE = 600
"""Characters of Spark's message in the facts of an error; the log has the whole message."""
_NAMED = 8


@dataclass(frozen=True)
class Reading:
    batch: int
    ranges: tuple[SourceRange, ...]
    row: str | None = None  # the row that a constraint of the table refuses, with its coordinates

    def __str__(self) -> str:
        read = [text for one in self.ranges for text in kind_of(one.kind).describe_range(one)]
        more = f" and {len(read) - _NAMED} more" if len(read) > _NAMED else ""
        return f"batch {self.batch}: {', '.join(read[:_NAMED])}{more}"


@dataclass(frozen=True, kw_only=True)
class Failures:
    settings: ProjectSettings | None  # whose secrets are removed from the errors
    sources: Sequence[Source] = ()
    log_file: Path | None = None

    def as_error(
        self,
        failure: BaseException,
        declared: Declared,
        carried: BaseException | None = None,
        reading: Reading | None = None,
        expectations: Sequence[Expectation] = (),
    ) -> HeadraceError:
        """The coded error for a failure; ``carried`` is the exception of the batch function, if it raised
        one."""
        coded = (one for one in (carried, failure) if isinstance(one, HeadraceError))
        error = next(coded, None) or self._explain(failure, carried, declared, reading, expectations)
        if isinstance(error, errors.RefusedError):
            error = error.with_location(declared.location)
        # Tables and events keep the texts of exceptions.
        error = error if self.settings is None else self.settings.redactor.error(error)
        if not isinstance(carried or failure, HeadraceError) and error.__cause__ is None:
            error.__cause__ = carried or failure  # whose trace --debug prints
        return error

    def text_of(self, failure: BaseException) -> str:
        text = text_of(failure)
        return text if self.settings is None else self.settings.redactor(text)

    def _explain(
        self,
        failure: BaseException,
        carried: BaseException | None,
        declared: Declared,
        reading: Reading | None,
        expectations: Sequence[Expectation],
    ) -> HeadraceError:
        name, text = _label(declared), f"{type(failure).__name__}: {text_of(failure)}\n{text_of(carried)}"
        # Spark's text around the exception of a batch says only that a batch has failed.
        cause = text if carried is None else f"{type(carried).__name__}: {text_of(carried)}"
        failed = FailedQuery(
            name=name,
            target=_target(declared),
            params={"name": str(declared.name)},
            location=declared.location,
            text=text,
            cause=_shortened(cause),
            logged=() if self.log_file is None else (f"Spark's log: {self.log_file}",),
            sources=self.sources,
            settings=self.settings,
        )
        if (in_view := _failed_in_view(text, declared)) is not None:
            return in_view
        if (bad := BadRecord.find(text)) is not None:
            return bad.to_error(name, declared.location, remedies=show_record(bad.at))
        if _MALFORMED.search(text) is not None:
            return self._find_damage(text, declared) or _malformed(text, declared, reading)
        if any(_is_driver_lost(one) for one in (carried, failure)):
            return driver_lost(failed.logged)
        unread = carried or failure
        if isinstance(unread, OSError) and any(
            one.startswith("headrace.storage.") for one in _modules(unread)
        ):
            return _unreadable(failed, declared, f"the system's error: {unread}")
        if (known := _known(failed, declared, reading) or self._find_damage(text, declared)) is not None:
            return known
        raised = raised_by(cause, expectations)
        of_ansi, settings = explain_failure(cause, declared.location)
        facts = [failed.cause, *([] if raised is None else [raised]), *of_ansi]
        if reading is not None:
            facts.append(f"the last batch that started is {reading}")
        root = None if self.settings is None else self.settings.root
        # The function of a sink, which is not that of the flow.
        line = None if carried is None else innermost(carried.__traceback__, root)
        summary, place, correct = f"{name} failed", line or declared.location, list[str]()
        if (own := find_raised(text, root)) is not None:
            # Chats and mails get the summary of an error: it has no values of rows.
            kind = own.exception.partition(":")[0]
            summary, place = f"{name} failed: {own.function}() raised {kind}", own.location
            facts[:1] = [own.exception, _unchanged(declared)]
            correct = [f"correct {place}, then run again:   headrace run"]
        return errors.FlowFailedError(
            summary,
            location=place,
            facts=(*facts, *failed.logged),
            remedies=(*settings, *correct, "print the stack trace:   headrace run --debug"),
            params=failed.params,
        )

    def _find_damage(self, text: str, declared: Declared) -> errors.LogUnreadableError | None:
        """The error for a damaged log of a table that the flow writes or reads, if a failure is about one."""
        if self.settings is None or _OF_LOG.search(text) is None:
            return None
        target = None if isinstance(declared, TemporaryView) else declared.target
        tables = [target, *(source.table for source in self.sources)]
        logs = [self.settings.storage.table(one) for one in tables if one is not None]
        found = (find_damage_named(text), *map(find_damage, logs))
        return next((one.with_location(declared.location) for one in found if one is not None), None)


def _unreadable(failed: FailedQuery, declared: Declared, fact: str) -> HeadraceError:
    facts = (fact, _unchanged(declared))
    return failed.error(
        errors.StorageUnreadableError, "the storage could not be read", facts, "headrace doctor"
    )


def _is_driver_lost(error: BaseException | None) -> bool:
    """Whether a call of the JVM has found no JVM; a user's function can lose connections of its own."""
    if isinstance(error, ConnectionError):
        return [*_modules(error), ""][0].partition(".")[0] in ("py4j", "pyspark")
    return type(error).__name__ == "Py4JNetworkError"


def _modules(error: BaseException) -> list[str]:
    """The modules of the functions that an error has passed, the one that has raised it first."""
    frames = traceback.walk_tb(error.__traceback__)
    return [str(frame.f_globals.get("__name__")) for frame, _ in frames][::-1]


def _failed_in_view(text: str, declared: Declared) -> errors.ExpectationFailedError | None:
    """The error for a row that fails an expectation of a temporary view, which the query itself raises."""
    found = _FAILED_IN_VIEW.search(text)
    if found is None:
        return None
    expectation = json.loads(found[1])
    return errors.ExpectationFailedError(
        f"{declared.name}: a row of a temporary view that it reads fails the expectation `{expectation}`",
        location=declared.location,
        facts=(found[2][:_MESSAGE], NOT_COMMITTED),
        remedies=(
            "keep such rows out of the view: expect_or_drop",
            "or correct the condition or the source, and run again:   headrace run",
        ),
        params={"flow": str(declared.name), "expectations": [expectation]},
    )


def _malformed(text: str, declared: Declared, reading: Reading | None) -> errors.RecordUnparseableError:
    """The error for a record that Spark's own parser cannot parse; Spark does not report which record."""
    name = _label(declared)
    found = re.search(r"Malformed records are detected in record parsing: (.*?)\.?\n", text)
    excerpt = found[1] if found is not None else ""
    return errors.RecordUnparseableError(
        f"{name}: a record does not match a schema in the query",
        location=declared.location,
        facts=(
            *(
                [f"the record, as Spark parsed it: {excerpt[:_CAUSE]}"]
                if excerpt and "null" not in excerpt
                else []
            ),
            *([] if reading is None else [f"the record is in {reading}"]),
            _unchanged(declared),
        ),
        remedies=(
            "correct the schema, or use mode=PERMISSIVE in from_json, which gives NULL for such a record",
            "or use hr.parse_json: its error names the partition and offset of the record",
        ),
        params={"flow": str(declared.name), **({} if reading is None else {"batch": reading.batch})},
    )


def _unchanged(declared: Declared) -> str:
    match declared:
        case AppendFlow() | AutoCdcFlow():
            return NOT_COMMITTED
        case RefreshFlow() | TemporaryView():
            return "the view was not changed"
        case _:
            assert_never(declared)


def driver_lost(facts: Sequence[str] = ()) -> errors.DriverLostError:
    return errors.DriverLostError(
        "the JVM of Spark has ended",
        facts=("batches that were not committed were not written", *facts),
        remedies=(
            "start again:   headrace run",
            "if it ends again, give it more memory: `runtime: {memory: 2g}` in headrace.yml",
        ),
    )


def _known(failed: FailedQuery, declared: Declared, reading: Reading | None) -> HeadraceError | None:
    text = failed.text
    if (mismatch := find_mismatch(text)) is not None and isinstance(declared, AppendFlow | AutoCdcFlow):
        return state_changed(declared, mismatch, (NOT_COMMITTED, *failed.logged))
    if re.search(r"No space left on device|Disk quota exceeded", text):
        return failed.error(
            errors.StorageUnwritableError,
            "no space is left on the disk of the storage, or on that of Spark's temporary files",
            (*_disk_facts(failed.settings), NOT_COMMITTED),
            "free space on the disk, then start again:   headrace run",
        )
    of_sources = [error for kind in KINDS if (error := kind.explain_failure(failed)) is not None]
    # A text can have passing messages of one system beside the reason why another has failed for good.
    if (terminal := next((error for error in of_sources if not error.transient), None)) is not None:
        return terminal
    if (unreadable := _UNREADABLE.search(text)) is not None:
        return _unreadable(failed, declared, _shortened(unreadable[0]))
    if (violated := _VIOLATED.search(text)) is not None:
        return _violation(failed, declared, violated, reading)
    if (driver := find_missing(failed.cause, failed.location)) is not None:
        problem, remedies = driver
        return failed.error(errors.FlowFailedError, problem, (_unchanged(declared),), *remedies)
    if (missing := _NO_MODULE.search(text)) is not None:
        return _module_missing(failed, declared, missing[1])
    if "java.lang.OutOfMemoryError" in text or "SparkOutOfMemoryError" in text:
        return failed.error(
            errors.OutOfMemoryError,
            "the heap of Spark's JVM is too small",
            (failed.cause,),
            "give the JVM more memory: `runtime: {memory: 4g}` in headrace.yml",
            "or make the batches smaller: `maxOffsetsPerTrigger` or `maxFilesPerTrigger` of the source",
        )
    if _TAKEN_OVER.search(text):
        return errors.LeaseLostError(
            f"another process has taken over flow {failed.name} while this process did not respond",
            facts=(
                "the checkpoint has a batch of the other process; this process has written nothing since",
            ),
            remedies=(ONE_PROCESS,),
            params={"flow": failed.name},
        )
    if of_sources:
        return of_sources[0]
    if _TRANSIENT.search(text):
        return errors.FlowInterruptedError(
            f"{failed.name} was interrupted: {failed.cause[:_CAUSE]}",
            location=failed.location,
            facts=(failed.cause, *failed.logged),
            params=failed.params,
        )
    return None


def _violation(
    failed: FailedQuery, declared: Declared, violated: re.Match[str], reading: Reading | None
) -> HeadraceError:
    """The error for a row that Delta refuses. `violated`: the match of `_VIOLATED`."""
    constraint = problem = violated[1].rstrip(" .:")
    row = list(dict.fromkeys(_ROW.findall(failed.text[violated.end() :])))  # Spark repeats its message
    found = failed.cause[max(0, failed.cause.find("[DELTA_")) :]
    if row and constraint.endswith(_BY_ROW):
        problem = f"a row violates the {constraint.removesuffix(_BY_ROW)}"
        found = "the row has " + ", ".join(f"{column} = {value}" for column, value in row[:_NAMED])
    if constraint.startswith("Value "):
        problem = "a value is longer than its CHAR or VARCHAR column"
    facts = [found] if reading is None else [found, f"it is in {reading}"]
    if reading is not None and reading.row is not None:
        # Its coordinates are before it, or in it.
        facts = [f"the row: {reading.row}", f"it is in batch {reading.batch}"]
    return failed.error(
        errors.ConstraintViolatedError,
        problem,
        (*facts, _unchanged(declared)),
        "correct the row at its source or in the query, then run again:   headrace run",
        f"or put such rows in the quarantine of {failed.target}, {_expectation(declared, constraint)}",
    )


def _module_missing(failed: FailedQuery, declared: Declared, name: str) -> HeadraceError:
    top = name.partition(".")[0]
    folders = () if failed.settings is None else failed.settings.code_folders
    remedies = [f"install its package for the Python of the workers, such as:   pip install {top}"]
    settings = failed.settings
    if settings is not None and settings.master is not None and not is_local(settings.master):
        packages = ", ".join([*settings.cluster.packages, top])
        remedies.insert(0, f"send its package to the executors: `cluster: {{packages: [{packages}]}}`")
    if any((folder / top).is_dir() or (folder / f"{top}.py").is_file() for folder in folders):
        remedies = [
            f"write the import in the file or in the body of the function:   import {name}",
            f'or the name as a literal in the body:   importlib.import_module("{name}")',
        ]
    problem = f"a function imports the module `{name}`, which the worker does not have"
    # No record is at fault, so this is not the error of a query that fails on one.
    return failed.error(errors.QueryFailedError, problem, (_unchanged(declared),), *remedies, module=name)


def violated_condition(text: str) -> str | None:
    """The SQL condition of the rows that violate the constraint in a message of Delta."""
    violated = _VIOLATED.search(text)
    found = None if violated is None else _constraint(violated[1])
    return None if found is None else f"NOT coalesce({found[1]}, FALSE)"


def _constraint(violated: str) -> tuple[str, str] | None:
    """The name and the condition of a violated constraint, if Delta's message has one."""
    if (check := re.match(r"CHECK constraint (\w+) \((.*)\) violated", violated)) is not None:
        return check[1], check[2]
    column = re.match(r"NOT NULL constraint violated for column: ([\w.]+\w)", violated)
    return None if column is None else (column[1].replace(".", "_"), f"{column[1]} IS NOT NULL")


def _expectation(declared: Declared, violated: str) -> str:
    """How the dataset declares an expectation for a violated constraint, in its own language."""
    name, condition = _constraint(violated) or ("NAME", "CONDITION")
    if declared.location.is_sql:
        expectation = f"CONSTRAINT {name} EXPECT ({condition}) ON VIOLATION QUARANTINE ROW"
        return f"with an entry in the list of its columns:   {expectation}"
    text = json.dumps(condition, ensure_ascii=False)
    if isinstance(declared, AutoCdcFlow):
        argument = f'expect_all_or_quarantine={{"{name}": {text}}}'
        return f"with an argument of its hr.create_streaming_table:   {argument}"
    return f'with a line above its function:   @hr.expect_or_quarantine("{name}", {text})'


def _disk_facts(settings: ProjectSettings | None) -> tuple[str, ...]:
    if settings is None:
        return ()
    root = settings.storage.root
    return (f"storage: {root}", *root.full().facts)


def state_changed(
    flow: StreamingFlow, mismatch: StateMismatch, facts: Sequence[str]
) -> errors.StateChangedError:
    return errors.StateChangedError(
        f"flow {flow.name}: its query has changed, and the state in its checkpoint does not fit it",
        location=return_location(flow.location),
        facts=(*mismatch.lines(), *facts),
        remedies=(
            f"read everything again:   headrace full-refresh {flow.target.short}",
            "or keep the table as it is: undo the change, and write the new query to another table",
        ),
        params={"flow": flow.name, "dataset": str(flow.target), "condition": mismatch.condition},
    )


def _target(declared: Declared) -> str:
    return (declared.name if isinstance(declared, TemporaryView) else declared.target).short


def _label(declared: Declared) -> str:
    """The name of a flow or view in messages."""
    return declared.name if isinstance(declared, AppendFlow | AutoCdcFlow) else _target(declared)


def _shortened(text: str) -> str:
    """Spark's message without the Java stack trace and the query plan."""
    lines = [line for line in text.splitlines() if not re.match(r"\s+at |\s*\.\.\. \d+ more|\+-|:-", line)]
    message = " ".join(" ".join(lines).split())
    root = re.findall(r"Caused by: ([^:]+: .*?)(?= Caused by: |$)", message)
    return _OF_STREAM.sub("", root[-1] if root else message)[:_MESSAGE]


_OF_STREAM = re.compile(r"^(?:\w+: )?\[STREAM_FAILED\] Query \[[^\]]*\] terminated with exception: ")
_SQL = re.compile(r"== SQL \(line \d+, position \d+\) == ")
_PYTHON = re.compile(r'File "([^"]*)", line (\d+)')


def find_raising(text: str, expectations: Sequence[Expectation]) -> Expectation | None:
    """The expectation whose condition is in Spark's message; ``None`` if no condition is.

    Spark shows the text of a condition in SQL, and the line of a Python function. It does not show which
    Column has failed.
    """
    flat = " ".join(text.split())
    shown = [flat[found.end() :] for found in _SQL.finditer(flat)]
    lines = {(path.rpartition("/")[2], int(line)) for path, line in _PYTHON.findall(flat)}
    raised = [
        one
        for one in expectations
        if (
            any(sql.startswith(one.text) for sql in shown)
            if isinstance(one.condition, str)
            else (one.location.path.rpartition("/")[2], one.location.line) in lines
        )
    ]
    # A condition can begin with the text of another one.
    return max(raised, key=lambda one: len(one.text), default=None)


def raised_by(text: str, expectations: Sequence[Expectation]) -> str | None:
    """The fact that names what raised an error in a query whose rows are checked; ``None`` without checks."""
    if not expectations:
        return None
    found = find_raising(text, expectations)
    if found is not None:
        return f"raised by the condition of the expectation `{found.name}` ({found.location}): {found.text}"
    names = ", ".join(f"`{one.name}`" for one in expectations)
    return f"raised by the query, or by a condition of its expectations {names}"
