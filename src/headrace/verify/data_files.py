"""The data files on disk, compared with what the log states of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from typing import Any

from headrace.errors import first_line
from headrace.verify.delta_log import DataFile, TableLog
from headrace.verify.stored import StoredPath, gather

_PART = 64
"""The number of files in a task. With one task for each file, 50,000 files took 800 MB of memory."""
DECODED_BYTES = 256 << 20
"""The strings of the newest files are decoded, up to so many bytes of files in each table. It takes about
a second; without a bound, `verify` would read the whole of a large table at each run."""

_CHUNK_BYTES = 16 << 20
"""Bytes that are decoded at a time; several files are read at once."""

_COPY_MS = 5_000
"""How much longer than its commit's file a copy of a data file can take."""


@dataclass(frozen=True, slots=True)
class FileFacts:
    size: int | None = None  # bytes; ``None`` when there is no such file, or it is not known
    modified_ms: int = 0
    rows: int | None = None
    problem: str | None = None  # why the file or its footer cannot be read
    decoded: bool = False  # whether the strings were decoded
    undecodable: str | None = None  # the first string column with bytes that are not valid UTF-8


def load_facts(log: TableLog, paths: Iterable[str]) -> dict[str, FileFacts]:
    """Read each file's size, age and footer, and decode the strings of the newest active files."""
    wanted = set(paths)
    decoded = _newest((file for file in log.active().values() if file.path in wanted), DECODED_BYTES)

    def load(some: Sequence[str]) -> list[tuple[str, FileFacts]]:
        return [(path, _facts(log.file_path(path), decode=path in decoded)) for path in some]

    listed = list(wanted)
    parts = [listed[start : start + _PART] for start in range(0, len(listed), _PART)]
    return dict(chain.from_iterable(gather(load, parts)))


def contradictions(
    file: DataFile, facts: FileFacts, *, judge_age: bool, committed_ms: int | None
) -> list[tuple[str, str]]:
    """Pairs of code and text where a file differs from its entry in the log. `committed_ms`: the time of its
    commit."""
    unreadable = ("FILE_UNREADABLE", f"cannot be read: {facts.problem}")
    if facts.size is None:
        missing = ("FILE_MISSING", "is in the log, but not on disk")
        return [missing if facts.problem is None else unreadable]
    found = []
    if facts.size != file.size:
        found.append(("FILE_SIZE_DIFFERS", f"has {facts.size:,} bytes; the log states {file.size:,}"))
    if facts.problem is not None:
        found.append(unreadable)
    elif file.rows is not None and facts.rows != file.rows:
        found.append(("FILE_ROWS_DIFFER", f"has {facts.rows:,} rows; the log states {file.rows:,}"))
    if facts.undecodable is not None:
        text = (
            f"has bytes that are not valid UTF-8 in the string column {facts.undecodable}: "
            "Spark reads it, other engines do not"
        )
        found.append(("FILE_NOT_UTF8", text))
    # A writer notes the age when it has closed the file, so the file can be older and never younger.
    # Clocks and file systems that count in whole seconds are allowed one.
    tolerance_ms = 1000 if file.modified_ms % 1000 == 0 else 2
    allowed = [file.modified_ms + tolerance_ms]
    if committed_ms is not None:
        # A copy that is made right after a commit gives the data and the commit's file about the same time.
        allowed.append(committed_ms + _COPY_MS)
    if judge_age and facts.modified_ms > max(allowed):
        late = (facts.modified_ms - file.modified_ms) / 1000
        found.append(("FILE_REPLACED", f"was modified {late:,.1f} s after it was committed"))
    return found


def _newest(files: Iterable[DataFile], limit: int) -> set[str]:
    """The newest files with at most `limit` bytes together; at least one."""
    newest = sorted(files, key=lambda file: file.modified_ms)[::-1]
    sums = accumulate(file.size for file in newest)
    return {
        file.path
        for number, (file, total) in enumerate(zip(newest, sums, strict=True))
        if number == 0 or total <= limit
    }


def _facts(path: StoredPath, *, decode: bool) -> FileFacts:
    try:
        stored = path.look()
    except OSError as error:
        return FileFacts(problem=first_line(error))
    if stored is None:
        return FileFacts()
    import pyarrow.parquet as pq

    found = FileFacts(size=stored.size, modified_ms=stored.modified_ms)
    try:
        with path.open() as source, pq.ParquetFile(source) as file:
            undecodable = _find_undecodable(file) if decode else None
            rows = file.metadata.num_rows
    except (OSError, ValueError) as error:
        return replace(found, problem=first_line(error))
    return replace(found, rows=rows, decoded=decode, undecodable=undecodable)


def _find_undecodable(file: Any) -> str | None:
    """The first string column with bytes that are not valid UTF-8; Spark writes what a query casts."""
    import pyarrow as pa

    footer = file.metadata
    columns = [footer.schema.column(index) for index in range(footer.num_columns)]
    strings = [column.path for column in columns if column.logical_type.type == "STRING"]
    size = sum(footer.row_group(index).total_byte_size for index in range(footer.num_row_groups))
    rows = max(1, _CHUNK_BYTES * footer.num_rows // (size + 1))
    for name in strings:
        for batch in file.iter_batches(batch_size=rows, columns=[name], use_threads=False):
            try:
                batch.validate(full=True)
            except pa.ArrowInvalid:
                return str(name)
    return None
