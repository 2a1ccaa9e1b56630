"""Deletion vectors: which rows of a Parquet file do not count. Read by `verify`'s own decoder."""

from __future__ import annotations

import base64
import struct
import uuid
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headrace.verify.delta_log import DeletionVector

_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_RFC1924 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_TO_RFC1924 = bytes.maketrans(_Z85, _RFC1924)
_MAGIC = 1681511377
_COOKIE_NO_RUNS = 12346
_COOKIE_RUNS = 12347
_NO_OFFSETS_BELOW = 4
_ARRAY_MOST = 4096


class VectorDamagedError(Exception):
    """A deletion vector is missing, or is not what the log says of it."""


def load_deleted_rows(table: Path, vector: DeletionVector) -> NDArray[np.int64]:
    """The positions of the deleted rows in their file, ascending.

    Raises:
        VectorDamagedError: It is missing, damaged, or has another number of rows than the log says.
    """
    try:
        rows = _rows(_bitmap(table, vector))
    except (OSError, ValueError, struct.error, IndexError) as error:
        raise VectorDamagedError(f"deletion vector {vector.id}: {error}") from error
    if rows.size != vector.cardinality:
        raise VectorDamagedError(
            f"deletion vector {vector.id} marks {rows.size} rows, and the log says {vector.cardinality}"
        )
    return rows


def _bitmap(table: Path, vector: DeletionVector) -> bytes:
    if vector.storage == "i":
        return _decoded85(vector.place)[: vector.size]
    if vector.storage == "p":
        path = Path(vector.place.removeprefix("file://").removeprefix("file:"))
    else:
        # The last 20 characters are the file's UUID; what stands before them is a folder.
        name = uuid.UUID(bytes=_decoded85(vector.place[-20:]))
        path = table / vector.place[:-20] / f"deletion_vector_{name}.bin"
    with path.open("rb") as file:
        file.seek(vector.offset or 0)
        (size,) = struct.unpack(">i", file.read(4))
        data = file.read(size)
        (checksum,) = struct.unpack(">I", file.read(4))
    if size != vector.size or zlib.crc32(data) != checksum:
        raise ValueError(f"{path.name} does not hold the bytes that were written")
    return data


def _decoded85(text: str) -> bytes:
    return base64.b85decode(text.encode("ascii").translate(_TO_RFC1924))


def _rows(data: bytes) -> NDArray[np.int64]:
    """A 64-bit Roaring bitmap in its portable form: 32-bit bitmaps, each under its upper half."""
    magic, count = struct.unpack_from("<iq", data, 0)
    if magic != _MAGIC:
        raise ValueError(f"unknown format {magic}")
    at = 12
    found = []
    for _ in range(count):
        (upper,) = struct.unpack_from("<I", data, at)
        lower, at = _roaring(data, at + 4)
        found.append(lower + (np.int64(upper) << np.int64(32)))
    return np.concatenate(found) if found else np.empty(0, dtype=np.int64)


def _roaring(data: bytes, at: int) -> tuple[NDArray[np.int64], int]:
    """A 32-bit Roaring bitmap, as github.com/RoaringBitmap/RoaringFormatSpec lays it out."""
    (cookie,) = struct.unpack_from("<I", data, at)
    at += 4
    runs = b""
    if cookie & 0xFFFF == _COOKIE_RUNS:
        size = (cookie >> 16) + 1
        runs = data[at : at + (size + 7) // 8]
        at += len(runs)
    elif cookie == _COOKIE_NO_RUNS:
        (size,) = struct.unpack_from("<I", data, at)
        at += 4
    else:
        raise ValueError(f"unknown cookie {cookie}")
    headers = np.frombuffer(data, dtype="<u2", count=2 * size, offset=at).reshape(-1, 2)
    at += 4 * size
    if not runs or size >= _NO_OFFSETS_BELOW:
        at += 4 * size
    found = []
    for index, (key, fewer) in enumerate(headers.astype(np.int64)):
        is_run = bool(runs) and bool(runs[index // 8] >> (index % 8) & 1)
        values, at = _container(data, at, int(fewer) + 1, is_run)
        found.append(values + (key << 16))
    return (np.concatenate(found) if found else np.empty(0, dtype=np.int64)), at


def _container(data: bytes, at: int, cardinality: int, is_run: bool) -> tuple[NDArray[np.int64], int]:
    if is_run:
        (count,) = struct.unpack_from("<H", data, at)
        pairs = np.frombuffer(data, dtype="<u2", count=2 * count, offset=at + 2).reshape(-1, 2)
        spans = [np.arange(first, first + more + 1) for first, more in pairs.astype(np.int64)]
        return np.concatenate(spans), at + 2 + 4 * count
    if cardinality <= _ARRAY_MOST:
        values = np.frombuffer(data, dtype="<u2", count=cardinality, offset=at)
        return values.astype(np.int64), at + 2 * cardinality
    bits = np.unpackbits(np.frombuffer(data, dtype=np.uint8, count=8192, offset=at), bitorder="little")
    return np.flatnonzero(bits).astype(np.int64), at + 8192
