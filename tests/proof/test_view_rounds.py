"""Whatever changes in the tables of a view: its increments give the rows of its query.

Round N of seed S is always the same: ``HEADRACE_SEED=S pytest tests/proof/test_view_rounds.py`` repeats it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from view_rounds import QUERIES, Shop, run_round

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.thorough

ROUNDS = int(os.environ.get("HEADRACE_ROUNDS", "30"))
SEED = int(os.environ.get("HEADRACE_SEED", "0"))


@pytest.mark.parametrize("seed", range(SEED, SEED + 9))
def test_each_increment_gives_the_rows_of_the_query(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    shop, wrong = Shop(spark, tmp_path, seed), []
    for number in range(ROUNDS):
        wrong += run_round(shop, number, QUERIES)
    assert not wrong, "\n".join([f"seed {seed}", *wrong])
