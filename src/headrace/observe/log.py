"""The log of an update: a file that is rotated by size, with the events and the log lines of Headrace.

Spark's log of the same update is in the same folder. Both are on the machine of the driver, not in the
storage. An event as JSON is also a line of `headrace run --json`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import json
import logging
import logging.handlers
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, get_args

from headrace.errors import LogSettingInvalidError, nearest
from headrace.model import events, table_events
from headrace.model.counts import HistoryChanges, RowChanges
from headrace.model.event_forms import Event, Level
from headrace.model.names import TableName
from headrace.model.project import LogFormat, LogLevel, ProjectSettings
from headrace.model.ranges import OpaquePosition, SourceRange
from headrace.model.secrets import Redactor
from headrace.observe.read import fields_to_json
from headrace.runtime.places import is_locked, logs_folder
from headrace.storage.local import lock_shared

FORMAT_VARIABLE: Final = "HEADRACE_LOG_FORMAT"
LEVEL_VARIABLE: Final = "HEADRACE_LOG_LEVEL"

_BYTES = 10 * 1024 * 1024
_ROTATED = 4  # older files of a log that are kept in addition to the newest: 50 MB in all
_KEPT = 50  # updates of one pipeline whose logs are kept
_RUN = "headrace.run"
_LEVELS: Mapping[Level, int] = {
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "METRICS": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
}
_logger = logging.getLogger(__name__)
_OURS = "headrace"
_KINDS: Mapping[str, type[Event]] = {
    name: kind
    for module in (events, table_events)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and issubclass(kind, Event)
}


@dataclass(frozen=True)
class LogSettings:
    form: LogFormat = "text"  # ``text`` for people, ``json`` for machines: one object a line
    level: LogLevel = "info"

    @classmethod
    def of(cls, form: LogFormat | None = None, level: LogLevel | None = None) -> LogSettings:
        """The given settings, else the settings of the environment, else the defaults."""
        return cls(
            form=form or _from_environment(FORMAT_VARIABLE, get_args(LogFormat), "text"),
            level=level or _from_environment(LEVEL_VARIABLE, get_args(LogLevel), "info"),
        )


def log_folder(settings: ProjectSettings) -> Path:
    """The folder of a pipeline's logs; two pipelines of the same name have two folders."""
    mark = hashlib.sha256(str(settings.home.resolve()).encode()).hexdigest()[:8]
    return logs_folder() / f"{settings.name}-{mark}"


def update_log(settings: ProjectSettings, update: str) -> Path:
    return log_folder(settings) / f"{update}.log"


def spark_log(settings: ProjectSettings, update: str) -> Path:
    return log_folder(settings) / f"{update}.spark.log"


def newest_log(settings: ProjectSettings) -> Path | None:
    """The log of the update that runs now, or else of the last one."""
    found = [file for file in log_folder(settings).glob("*.log") if not file.name.endswith(".spark.log")]
    return max(found, key=lambda file: (is_locked(file), file.name), default=None)


class UpdateLog:
    """The log of one update; an emitter that several threads may call. While it is open, it also gets the log
    records of Headrace's modules in this process. The handlers and levels of the process do not change."""

    def __init__(self, settings: ProjectSettings, update: str, how: LogSettings) -> None:
        self.file = update_log(settings, update)
        self._level = logging.getLevelNamesMapping()[how.level.upper()]
        formatter = JsonFormatter(update) if how.form == "json" else TextFormatter()
        self._handler: _HeldFile | None = None
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self._handler = _HeldFile(self.file, self._level, formatter, settings.redactor)
        except OSError as error:
            # A log that cannot be written must not stop the run.
            _logger.warning("the log of this update cannot be written: %s: %s", self.file, error)

    def __enter__(self) -> UpdateLog:
        if self._handler is not None:
            TAP.open(self._handler)
            _prune(self.file.parent)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._handler is None:
            return
        if error is not None:
            self._write(logging.ERROR, _RUN, "the update was aborted", {}, error)
        TAP.close(self._handler)
        self._handler.close()

    def __call__(self, event: Event) -> None:
        fields = event_to_json(event)
        name = str(fields.pop("event"))
        for key in ("update", "at"):
            del fields[key]
        self._write(_LEVELS[event.severity], _RUN, name, fields)

    def _write(
        self,
        level: int,
        logger: str,
        text: str,
        fields: Mapping[str, Any],
        error: BaseException | None = None,
    ) -> None:
        if self._handler is None or level < self._level:
            return
        trace = None if error is None else (type(error), error, error.__traceback__)
        record = logging.LogRecord(logger, level, "", 0, "%s", (text,), trace)
        record.fields = fields
        self._handler.handle(record)


class TextFormatter(logging.Formatter):
    """A log line as text: time, level, logger, message, fields."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {key}={_shown(value)}" for key, value in _fields(record).items())
        head = f"{_at(record)} {record.levelname:<7} {record.name}  {record.getMessage()}{fields}"
        return head if record.exc_info is None else f"{head}\n{self.formatException(record.exc_info)}"


class JsonFormatter(logging.Formatter):
    """A log line as JSON: ``at``, ``level``, ``logger``, ``event``, ``update``, ``flow``, ``fields``."""

    def __init__(self, update: str) -> None:
        super().__init__()
        self._update = update

    def format(self, record: logging.LogRecord) -> str:
        fields = dict(_fields(record))
        line = {
            "at": _at(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            "update": self._update,
            "flow": fields.pop("flow", None),
            "fields": fields,
        }
        if record.exc_info is not None:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class _HeldFile(logging.handlers.RotatingFileHandler):
    """A rotated, locked file without secrets; only the first write error is reported."""

    def __init__(self, file: Path, level: int, formatter: logging.Formatter, redactor: Redactor) -> None:
        self._failed = False
        self._redactor = redactor
        super().__init__(file, maxBytes=_BYTES, backupCount=_ROTATED, encoding="utf-8")
        self.setLevel(level)
        self.setFormatter(formatter)

    def _open(self) -> io.TextIOWrapper:
        stream = super()._open()
        lock_shared(stream)
        return stream

    def format(self, record: logging.LogRecord) -> str:
        return self._redactor(super().format(record))

    def emit(self, record: logging.LogRecord) -> None:
        if not self._failed:
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        self._failed = True
        _logger.warning("this update is not logged any more: %s", self.baseFilename)


def _prune(folder: Path) -> None:
    """Remove the logs of all but the last updates; those of updates that run are kept."""
    by_update: dict[str, list[Path]] = {}
    for file in folder.iterdir():
        by_update.setdefault(file.name.split(".")[0], []).append(file)
    for update in sorted(by_update)[:-_KEPT]:
        if any(is_locked(file) for file in by_update[update]):
            continue
        for file in by_update[update]:
            with contextlib.suppress(OSError):
                file.unlink()


def _from_environment(variable: str, known: tuple[Any, ...], default: Any) -> Any:
    text = os.environ.get(variable, "").strip().lower()
    if not text:
        return default
    if text not in known:
        near = nearest(text, known)
        raise LogSettingInvalidError(
            f"{variable} has the unknown value `{text}`",
            facts=(f"valid: {', '.join(known)}",),
            remedies=(f"did you mean {variable}={near}?",) if near else (f"unset {variable}",),
            params={"variable": variable, "value": text, "known": list(known)},
        )
    return text


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    found: Mapping[str, Any] = getattr(record, "fields", {})
    return found


def _at(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return str(round(value, 3))
    if isinstance(value, str):
        return value if value and value.isprintable() and " " not in value else json.dumps(value)
    return json.dumps(value, ensure_ascii=False, default=str)


class Tap:
    """Adds the log records of Headrace's modules to the open logs of updates.

    The handlers of the process mostly have no level, so they would get all records of a finer level. While a
    log is open, a relay passes on only the records that they would have got without it. Updates that run in
    one process at the same time share these records.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: list[logging.Handler] = []
        self._relay = _Relay(logging.NOTSET, logging.NOTSET, True)

    def open(self, handler: logging.Handler) -> None:
        with self._lock:
            logger = logging.getLogger(_OURS)
            if not self._open:
                self._relay = _Relay(logger.level, logger.getEffectiveLevel(), logger.propagate)
                for own in list(logger.handlers):
                    self._relay.handlers.append(own)
                    logger.removeHandler(own)
                logger.propagate = False
                logger.addHandler(self._relay)
            self._open.append(handler)
            logger.addHandler(handler)
            logger.setLevel(min(self._relay.level, *(one.level for one in self._open)))

    def close(self, handler: logging.Handler) -> None:
        with self._lock:
            logger = logging.getLogger(_OURS)
            logger.removeHandler(handler)
            self._open.remove(handler)
            if self._open:
                logger.setLevel(min(self._relay.level, *(one.level for one in self._open)))
                return
            logger.removeHandler(self._relay)
            for own in self._relay.handlers:
                logger.addHandler(own)
            logger.propagate = self._relay.propagates
            logger.setLevel(self._relay.own_level)


class _Relay(logging.Handler):
    """Passes records to the handlers of the process that would have got them without an open log."""

    def __init__(self, own_level: int, least: int, propagates: bool) -> None:
        super().__init__(least)
        self.own_level = own_level
        self.propagates = propagates
        self.handlers: list[logging.Handler] = []

    def emit(self, record: logging.LogRecord) -> None:
        for handler in self.handlers:
            if record.levelno >= handler.level:
                handler.handle(record)
        if self.propagates:
            logging.getLogger().callHandlers(record)


TAP: Final = Tap()  # one for the process, because it shares Python's loggers


def event_to_json(event: Event) -> dict[str, Any]:
    """The event as JSON values: its name under ``event``, then its fields."""
    return {"event": type(event).__name__, **fields_to_json(event)}


def event_from_json(data: Mapping[str, Any]) -> Event | None:
    """The event of JSON values; ``None`` if this version does not have its type."""
    kind = _KINDS.get(str(data.get("event")))
    if kind is None:
        return None
    known = {field.name for field in dataclasses.fields(kind)}
    values = {name: value for name, value in data.items() if name in known}
    return kind(**{name: _decode(name, value) for name, value in values.items()})


def _decode(name: str, value: Any) -> Any:
    if value is not None and name in _DECODERS:
        return _DECODERS[name](value)
    return tuple(value) if isinstance(value, list) else value


def _table(text: str) -> TableName:
    return TableName(*text.split(".", 1))


def _range(data: Mapping[str, Any]) -> SourceRange:
    start = None if data["from"] is None else OpaquePosition(data["from"])
    return SourceRange(data["index"], data["kind"], data["identity"], start, OpaquePosition(data["until"]))


_DECODERS: Mapping[str, Callable[[Any], Any]] = {
    "at": datetime.fromisoformat,
    "dataset": _table,
    "views": lambda names: tuple(map(_table, names)),
    "ranges": lambda ranges: tuple(map(_range, ranges)),
    "changes": lambda changes: (HistoryChanges if "rows_added" in changes else RowChanges)(**changes),
}
