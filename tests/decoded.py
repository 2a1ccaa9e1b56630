"""Every file of a folder with its content decoded, to look for texts that must be gone."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

_ZSTD, _GZIP, _PARQUET = b"\x28\xb5\x2f\xfd", b"\x1f\x8b", b"PAR1"


def files_with(folder: Path, text: str) -> list[str]:
    """The files of a folder, hidden ones too, whose name or content has a text."""
    wanted = text.encode()
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and (text in str(path) or any(wanted in one for one in _contents(path)))
    )


def _contents(path: Path) -> Iterator[bytes]:
    """The bytes of a file as they are, and decoded: rows that a deletion vector masks count as present."""
    data = path.read_bytes()
    yield data
    if data.startswith(_GZIP):
        yield gzip.decompress(data)
    elif data.startswith(_ZSTD):
        yield pa.CompressedInputStream(pa.BufferReader(data), "zstd").read()
    elif data.startswith(_PARQUET):
        rows = pq.ParquetFile(pa.BufferReader(data)).read().to_pylist(maps_as_pydicts="lossy")
        for value in rows:
            yield json.dumps(value, default=_text, ensure_ascii=False).encode()


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
