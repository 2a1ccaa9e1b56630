"""Whatever types the tables of a view have: its increments give the rows of its query.

Round N of seed S is always the same: ``HEADRACE_SEED=S HEADRACE_ROUNDS=N pytest`` with this file repeats it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from view_rounds import ODD_QUERIES
from view_seeds import CASES, check_rounds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize(("seed", "rounds"), CASES)
def test_each_increment_of_any_types_gives_the_rows_of_the_query(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int, rounds: int
) -> None:
    check_rounds(spark, tmp_path, capsys, seed, rounds, ODD_QUERIES)
