"""Whatever changes in the tables of a view, and whatever types they have: its increments give the rows of its
query.

Round N of seed S is always the same: ``HEADRACE_SEED=S HEADRACE_ROUNDS=N pytest`` with this file repeats it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from view_rounds import ODD_QUERIES, QUERIES, Shop, run_round

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEED = int(os.environ.get("HEADRACE_SEED", "0"))
ROUNDS = int(os.environ.get("HEADRACE_ROUNDS", "30"))
SEEDS = 9  # of the long check
FEW = 2  # rounds of the proof: one takes half a minute
KINDS = {"all changes": QUERIES, "any types": ODD_QUERIES}
CASES = [
    pytest.param(kind, seed, ROUNDS, id=f"{kind}-{seed}", marks=pytest.mark.thorough)
    for kind in KINDS
    for seed in range(SEED, SEED + SEEDS)
]
CASES += [pytest.param(kind, SEED, FEW, id=f"{kind}-few") for kind in KINDS]


@pytest.mark.parametrize(("kind", "seed", "rounds"), CASES)
def test_each_increment_gives_the_rows_of_the_query(
    spark: SparkSession, tmp_path: Path, kind: str, seed: int, rounds: int
) -> None:
    queries: Mapping[str, str] = KINDS[kind]
    shop, wrong = Shop(spark, tmp_path, seed), []
    for number in range(rounds):
        wrong += run_round(shop, number, queries)
    assert not wrong, "\n".join([f"seed {seed}", *wrong])
