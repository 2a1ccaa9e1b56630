"""The seeds of the random rounds of views, and the check of one seed."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from view_rounds import STRATEGIES, Shop, new_session, run_rounds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEED = int(os.environ.get("HEADRACE_SEED", "0"))
ROUNDS = int(os.environ.get("HEADRACE_ROUNDS", "30"))
SEEDS = 9  # of the long check
CASES = [
    *(pytest.param(seed, ROUNDS, marks=pytest.mark.thorough) for seed in range(SEED + 1, SEED + SEEDS)),
    pytest.param(SEED, ROUNDS),
]
"""The seeds, and how many rounds each has: one in each run of the proofs."""


def check_rounds(
    spark: SparkSession,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    seed: int,
    rounds: int,
    queries: Mapping[str, str],
) -> None:
    """Run the rounds of a seed, print what they have shown, and fail if a view is wrong."""
    outcome = run_rounds(Shop(new_session(spark, seed), folder, seed), rounds, queries)
    with capsys.disabled():
        sys.stdout.write(f"\nseed {seed}: {outcome}\n")
    assert not outcome.wrong, "\n".join([f"seed {seed}", *outcome.wrong])
    assert any(outcome.taken[one] for one in STRATEGIES), outcome
