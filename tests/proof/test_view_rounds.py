"""Whatever changes in the tables of a view, and whatever types they have: its increments give the rows of its
query.

Round N of seed S is always the same: ``HEADRACE_SEED=S HEADRACE_ROUNDS=N pytest`` with this file repeats it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from view_rounds import ODD_QUERIES, QUERIES, Shop, new_session, run_rounds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEED = int(os.environ.get("HEADRACE_SEED", "0"))
ROUNDS = int(os.environ.get("HEADRACE_ROUNDS", "30"))
SEEDS = 9  # of the long check
FEW = 30  # rounds of the proof
KINDS = {"all changes": QUERIES, "any types": ODD_QUERIES}
CASES = [
    pytest.param(kind, seed, ROUNDS, id=f"{kind}-{seed}", marks=pytest.mark.thorough)
    for kind in KINDS
    for seed in range(SEED, SEED + SEEDS)
]
CASES += [pytest.param(kind, SEED, FEW, id=f"{kind}-few") for kind in KINDS]


@pytest.mark.parametrize(("kind", "seed", "rounds"), CASES)
def test_each_increment_gives_the_rows_of_the_query(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, seed: int, rounds: int
) -> None:
    outcome = run_rounds(Shop(new_session(spark, seed), tmp_path, seed), rounds, KINDS[kind])
    with capsys.disabled():
        sys.stdout.write(f"\n{kind}, seed {seed}: {outcome}\n")
    assert not outcome.wrong, "\n".join([f"seed {seed}", *outcome.wrong])
    whole = sum(number for name, number in outcome.taken.items() if name.startswith("full"))
    assert whole < outcome.compared * 2 / 3, outcome
