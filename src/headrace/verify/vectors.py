"""Deletion vectors: which rows of a data file are deleted, decoded by `deltalake`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from headrace.verify.delta_log import DataFile, TableLog, decode_path

Rows = NDArray[np.int64]


class VectorDamagedError(Exception):
    """A deletion vector is missing, or marks another number of rows than the log states."""


class VectorsUnsupportedError(Exception):
    """The table has a protocol feature that `deltalake` does not read."""


class DeletedRows:
    """Reads the deletion vectors of one version of a table at a time, and keeps the positions."""

    def __init__(self) -> None:
        self._read: dict[tuple[str, int], Mapping[str, Rows]] = {}

    def load(self, log: TableLog, file: DataFile) -> Rows:
        """The positions of the deleted rows of a file that has a deletion vector, ascending.

        Raises:
            VectorDamagedError: The vector is missing, damaged, or marks another number of rows.
            VectorsUnsupportedError: `deltalake` does not read the table.
        """
        assert file.deletion_vector is not None
        version = log.version_with(file)
        key = (str(log.path), version)
        if key not in self._read:
            self._read[key] = _load(log, version)
        rows = self._read[key].get(log.path.relative(file.path), np.empty(0, dtype=np.int64))
        if rows.size != file.deletion_vector.cardinality:
            raise VectorDamagedError(
                f"deletion vector {file.deletion_vector.id} marks {rows.size} rows, "
                f"and the log states {file.deletion_vector.cardinality}"
            )
        return rows


def _load(log: TableLog, version: int) -> dict[str, Rows]:
    import pyarrow as pa
    from deltalake.exceptions import DeltaError

    found = {}
    try:
        table = log.path.open_table(version)
    except DeltaError as error:
        raise VectorsUnsupportedError(_first_line(error)) from error
    try:
        root = decode_path(table.table_uri).rstrip("/") + "/"
        vectors = table.deletion_vectors()
        for batch in pa.RecordBatchReader.from_stream(vectors):
            masks = batch.column("selection_vector")
            for index, path in enumerate(batch.column("filepath").to_pylist()):
                kept = masks[index].values.to_numpy(zero_copy_only=False)
                found[decode_path(path).removeprefix(root)] = np.flatnonzero(~kept)
    except (DeltaError, OSError, ValueError) as error:
        if "Unsupported table features" in str(error):
            raise VectorsUnsupportedError(_first_line(error)) from error
        raise VectorDamagedError(f"a deletion vector of version {version} cannot be read: {error}") from error
    return found


def _first_line(error: Exception) -> str:
    return f"deltalake cannot read its deletion vectors: {str(error).splitlines()[0]}"
