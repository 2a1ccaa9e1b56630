"""Records into a topic: each delivery confirmed by the broker, counted, and never repeated."""

from __future__ import annotations

import csv
import itertools
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal

from headrace.errors import ProduceFailedError, RecordInvalidError, SourceLocation, did_you_mean
from headrace.model.kafka_settings import KafkaConnection
from headrace.runtime.kafka_client import ClientErrors, confluent

FileFormat = Literal["json", "csv", "text"]

_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?")
_BOM = b"\xef\xbb\xbf"
_EXCERPT = 120


@dataclass(frozen=True, slots=True)
class Record:
    value: bytes
    key: bytes | None
    line: int


class RecordLines:
    def __init__(self, stream: IO[bytes], name: str, form: FileFormat, key: str | None = None) -> None:
        self.name = name
        self.skipped = 0
        """Empty lines so far: they are no records."""
        self._stream = stream
        self._ahead: Iterator[Record] | None = None
        self._form = form
        self._key = key

    @property
    def has_header(self) -> bool:
        """Whether the first line has the names of the fields."""
        return self._form == "csv"

    def __enter__(self) -> RecordLines:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def __iter__(self) -> Iterator[Record]:
        return self._ahead or self._read()

    def check_first(self) -> None:
        """Read the first record; the iteration still begins with it."""
        records = self._read()
        try:
            first = list(itertools.islice(records, 1))
        except RecordInvalidError as error:
            raise error.with_(
                facts=[*error.facts, "nothing was sent"], params={**error.params, "delivered": 0}
            ) from error.__cause__
        self._ahead = itertools.chain(first, records)

    def _read(self) -> Iterator[Record]:
        return self._csv() if self.has_header else self._lines()

    def _lines(self) -> Iterator[Record]:
        for line, raw in enumerate(self._stream, 1):
            value = raw.removeprefix(_BOM) if line == 1 else raw
            value = value.rstrip(b"\r\n")
            if not value.strip():
                self.skipped += 1
                continue
            key = None
            if self._form == "json":
                parsed = self._parsed(value, line)
                key = None if self._key is None else key_of(parsed, self._key, self.name, line)
                value = value.strip()
            yield Record(value=value, key=key, line=line)

    def _parsed(self, value: bytes, line: int) -> Any:
        try:
            return json.loads(
                value.decode("utf-8"),
                parse_float=None if self._key is None else Decimal,
                parse_constant=_refuse_constant,
            )
        except UnicodeDecodeError as error:
            raise invalid(self.name, line, "it is not UTF-8 text", column=error.start + 1) from error
        except json.JSONDecodeError as error:
            text = value.decode("utf-8", errors="replace")
            excerpt = text if len(text) <= _EXCERPT else f"{text[:_EXCERPT]} ..."
            shown = (f"the line: {excerpt}",) if self.name == STDIN else ()
            whole = line == 1 and text.strip() in ("[", "{")
            file = "" if self.name == STDIN else f" {self.name} > {Path(self.name).stem}.jsonl"
            raise invalid(
                self.name,
                line,
                f"it is not JSON: {error.msg}",
                column=error.colno,
                facts=shown,
                remedies=(f"write each record on one line:   jq -c '.[]'{file}",) if whole else (),
            ) from error
        except (ValueError, RecursionError) as error:
            raise invalid(self.name, line, f"it is not JSON: {error}") from error

    def _csv(self) -> Iterator[Record]:
        rows = csv.reader(self._decoded(), strict=True)
        header: list[str] | None = None
        line = 0
        try:
            for row in rows:
                line, first = rows.line_num, line + 1
                if not row:
                    self.skipped += 1
                elif header is None:
                    header = self._header(row, first)
                else:
                    yield self._row(header, row, first)
        except csv.Error as error:
            raise invalid(self.name, max(rows.line_num, 1), f"it is not CSV: {error}") from error

    def _decoded(self) -> Iterator[str]:
        for line, raw in enumerate(self._stream, 1):
            try:
                yield (raw.removeprefix(_BOM) if line == 1 else raw).decode("utf-8")
            except UnicodeDecodeError as error:
                raise invalid(self.name, line, "it is not UTF-8 text", column=error.start + 1) from error

    def _header(self, row: list[str], line: int) -> list[str]:
        names = [name.strip() for name in row]
        if "" in names:
            raise invalid(self.name, line, "its header has a column without a name")
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise invalid(self.name, line, f"its header has the column `{twice}` twice")
        if self._key is not None and self._key not in names:
            raise _without_key(self._key, names, self.name, line)
        return names

    def _row(self, header: list[str], row: list[str], line: int) -> Record:
        if len(row) != len(header):
            raise invalid(self.name, line, f"it has {len(row)} values for {len(header)} columns")
        pairs = ", ".join(
            f"{json.dumps(name, ensure_ascii=False)}: {_cell(text)}"
            for name, text in zip(header, row, strict=True)
        )
        key = None
        if self._key is not None:
            key = key_of(
                dict(zip(header, (text or None for text in row), strict=True)), self._key, self.name, line
            )
        return Record(value=f"{{{pairs}}}".encode(), key=key, line=line)


STDIN = "standard input"


def key_of(row: Any, field: str, name: str, line: int) -> bytes:
    found = row
    parts = [field] if isinstance(row, Mapping) and field in row else field.split(".")
    for part in parts:
        if not isinstance(found, Mapping) or part not in found:
            raise _without_key(field, row, name, line)
        found = found[part]
    match found:
        case None:
            raise invalid(name, line, f"its key field `{field}` is null")
        case Mapping() | list():
            raise invalid(name, line, f"its key field `{field}` is an object or a list")
        case bool():
            return b"true" if found else b"false"
        case _:
            try:
                return str(found).encode()
            except UnicodeEncodeError as error:
                problem = f"its key field `{field}` cannot be encoded as UTF-8"
                raise invalid(name, line, problem) from error


def invalid(
    name: str,
    line: int,
    problem: str,
    *,
    column: int | None = None,
    facts: tuple[str, ...] = (),
    remedies: tuple[str, ...] = (),
) -> RecordInvalidError:
    where = name if not line else f"{name}, line {line}"
    return RecordInvalidError(
        f"{where}: {problem}",
        location=SourceLocation(name, line, column) if line and name != STDIN else None,
        facts=facts,
        remedies=remedies,
        params={"path": name, "line": line},
    )


def _without_key(field: str, row: Any, name: str, line: int) -> RecordInvalidError:

    fields = list(row) if isinstance(row, Mapping | list) else []
    return invalid(
        name,
        line,
        f"it does not have the key field `{field}`",
        remedies=did_you_mean(field, map(str, fields)),
    )


def _cell(text: str) -> str:
    """A cell as JSON: numbers, true and false are written without quotes; an empty cell becomes null."""
    if not text:
        return "null"
    if text in ("true", "false") or _NUMBER.fullmatch(text):
        return text
    return json.dumps(text, ensure_ascii=False)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def open_records(
    path: Path | None, stdin: IO[bytes], form: FileFormat | None = None, key: str | None = None
) -> RecordLines:
    """The records of a file, or of standard input for ``None``; CSV by its ending, else JSON lines."""
    if path is None:
        return RecordLines(stdin, STDIN, form or "json", key)
    by_name: FileFormat = "csv" if path.suffix.lower() == ".csv" else "json"
    try:
        return RecordLines(path.open("rb"), str(path), form or by_name, key)
    except OSError as error:
        raise invalid(str(path), 0, f"it cannot be read: {error.strerror}") from error


_LARGEST = 1_048_576
"""What Kafka takes by default."""
_LEAST, _MOST = 1000, 1_000_000_000
"""What librdkafka lets us choose from."""

_DELIVERY_S = 120
"""As long as Kafka's own clients try to deliver a record."""

_POLL_S = 0.1
_LONG_S = 2.0
_NAMED = 5
"""Refused records that an error names."""


@dataclass
class Landed:
    records: int
    first: int  # the offset of the first of ours; records of others can lie between
    last: int


@dataclass
class Delivered:
    records: int = 0
    size: int = 0
    partitions: dict[int, Landed] = field(default_factory=dict)

    def add(self, partition: int, offset: int, size: int) -> None:
        self.records += 1
        self.size += size
        landed = self.partitions.get(partition)
        if landed is None:
            self.partitions[partition] = Landed(1, offset, offset)
        else:
            landed.records += 1
            landed.first, landed.last = min(landed.first, offset), max(landed.last, offset)


class TopicProducer:
    """Sends records to one topic; the broker writes each once, also where a request is repeated."""

    def __init__(
        self,
        connection: KafkaConnection,
        topic: str,
        *,
        largest: int | None = None,
        hurried: Callable[[], bool] = lambda: False,
    ) -> None:
        self.topic = topic
        self.delivered = Delivered()
        self.unconfirmed = 0
        """Records that were sent and that nobody waited for."""
        self._hurried = hurried
        self._servers = connection.bootstrap_servers
        self._failed: list[str] = []
        self._reason = ""
        self._last = ""
        settings = {
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 20,
            # A batch that is too large is refused whole, with the records that are not.
            "message.max.bytes": max(_LEAST, min(largest or _LARGEST, _MOST)),
            "message.timeout.ms": _DELIVERY_S * 1000,
        }
        self._producer = ClientErrors(connection).open(confluent.Producer, settings)

    def __enter__(self) -> TopicProducer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and not issubclass(kind, Exception):
            # Ctrl-C does not wait for records that were not acknowledged yet.
            self._producer.purge()

    def send(self, value: bytes, key: bytes | None, name: str, stopping: Callable[[], bool]) -> None:
        """Send one record; waits where too many are on their way."""
        size = len(value) + len(key or b"")
        entered = partial(self._enter, name, size)
        while True:
            self.check()
            try:
                self._producer.produce(self.topic, value=value, key=key, on_delivery=entered)
            except BufferError:
                if stopping():
                    return
                self._producer.poll(_POLL_S)
            except confluent.KafkaException as error:
                self._fail(name, error.args[0].str())
                self.check()
            else:
                self._last = name
                self._producer.poll(0)
                return

    def poll(self, timeout_s: float) -> None:
        """Count the records that the broker has acknowledged meanwhile."""
        self._producer.poll(timeout_s)
        self.check()

    def flush(self, on_wait: Callable[[int], None] = lambda left: None) -> None:
        """Wait until every record is acknowledged, or until the command is stopped."""
        began, told = time.monotonic(), False
        while (left := self._producer.flush(_POLL_S)) and not self._hurried():
            if not told and time.monotonic() - began > _LONG_S:
                told = True
                on_wait(left)
        self.unconfirmed = left
        self.check()

    def check(self) -> None:
        if not self._failed:
            return
        # Wait until the later records are delivered or have failed, too: the counts are final then.
        while self._producer.flush(_POLL_S) and not self._hurried():
            pass
        failed, count = self._failed, self.delivered.records
        others = "" if len(failed) == 1 else f", nor {', '.join(failed[1:_NAMED])}"
        others += f" and {len(failed) - _NAMED:,} more" if len(failed) > _NAMED else ""
        raise ProduceFailedError(
            f"{failed[0]} was not delivered to topic {self.topic} on {self._servers}{others}",
            facts=(
                f"the broker reports: {self._reason}",
                f"{count:,} {'record was' if count == 1 else 'records were'} delivered"
                + (f": all others up to {self._last}" if count else ""),
            ),
            remedies=_REMEDIES.get(self._reason, ("headrace doctor",)),
            params={
                "topic": self.topic,
                "reason": self._reason,
                "delivered": count,
                "failed": len(failed),
                "last_sent": self._last,
            },
        )

    def _enter(self, name: str, size: int, error: Any, message: Any) -> None:
        if error is not None:
            self._fail(name, error.str())
        else:
            self.delivered.add(message.partition(), message.offset(), size)

    def _fail(self, name: str, reason: str) -> None:
        self._failed.append(name)
        self._reason = self._reason or reason


_REMEDIES = {
    "Broker: Message size too large": ("raise the topic's max.message.bytes, or split the record",),
    "Broker: Topic authorization failed": ("allow this user to WRITE to the topic",),
}
