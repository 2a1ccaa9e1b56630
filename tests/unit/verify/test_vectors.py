"""Deletion vectors, against the decoder of another implementation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from lake import Lake, rows

from headrace.verify.delta_log import DeletionVector, load_table_log
from headrace.verify.vectors import VectorDamagedError, _container, _rows, load_deleted_rows


@pytest.mark.parametrize("inline", [True, False])
def test_rows_left_are_those_that_deltalake_reads(lake: Lake, inline: bool) -> None:
    from deltalake import DeltaTable, QueryBuilder

    table = lake.table()
    table.flow().append({0: (0, 5000)})
    deleted = [*range(0, 5000, 7), 4999]
    table.delete(sorted(set(deleted)), table.active()[0], inline=inline)
    (file,) = load_table_log(table.path).active().values()
    assert file.deletion_vector is not None
    gone = load_deleted_rows(table.path, file.deletion_vector)
    query = QueryBuilder().register("t", DeltaTable(table.path)).execute("SELECT id FROM t")
    left = {value.as_py() for batch in query for value in batch.column("id")}
    assert left == set(range(5000)) - set(gone.tolist())


def test_positions_beyond_16_and_32_bits(tmp_path: Path) -> None:
    from lake import roaring

    positions = [0, 65535, 65536, 70000, 2**32 + 5]
    assert _rows(roaring(positions)).tolist() == positions


def test_a_bitmap_container() -> None:
    bits = np.zeros(65536, dtype=np.uint8)
    bits[::3] = 1
    data = np.packbits(bits, bitorder="little").tobytes()
    values, at = _container(data, 0, int(bits.sum()), is_run=False)
    assert (values.tolist(), at) == (list(range(0, 65536, 3)), 8192)


def test_a_run_container() -> None:
    data = np.array([2, 10, 4, 100, 0], dtype="<u2").tobytes()
    values, at = _container(data, 0, 6, is_run=True)
    assert (values.tolist(), at) == ([10, 11, 12, 13, 14, 100], 10)


def test_a_vector_with_another_number_of_rows_than_the_log_says(lake: Lake) -> None:
    table = lake.table()
    table.commit([table.write(rows(range(10)))])
    vector = table.vector([1, 2])
    lying = DeletionVector("u", vector["pathOrInlineDv"], 1, vector["sizeInBytes"], 3)
    with pytest.raises(VectorDamagedError, match="marks 2 rows, and the log says 3"):
        load_deleted_rows(table.path, lying)
