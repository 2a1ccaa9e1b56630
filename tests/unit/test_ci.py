"""The numbers that a test run starts with and ends with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tools.total import main

from workers import choose_workers

GB = 1 << 30

Total = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def total(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Total:
    """Adds up logs: ``total(test=text, prove=text)`` gives the exit code and the printed lines."""

    def add(**logs: str) -> tuple[int, list[str]]:
        for name, text in logs.items():
            (tmp_path / f"{name}.log").write_text(text)
        code = main([tmp_path / f"{name}.log" for name in logs])
        return code, capsys.readouterr().out.splitlines()

    return add


def test_the_last_line_counts_the_tests_of_all_runs(total: Total) -> None:
    code, lines = total(
        test="....\n2000 passed, 3 skipped, 1 warning in 700.12s (0:11:40)\n",
        prove="..\n===== 100 passed in 900.00s (0:15:00) =====\nmake: done\n",
    )
    assert code == 0
    assert lines == [
        "test: 2000 passed, 3 skipped, 1 warning in 700.12s (0:11:40)",
        "prove: 100 passed in 900.00s (0:15:00)",
        "2100 passed, 0 failed, 3 skipped",
    ]


@pytest.mark.parametrize(
    ("prove", "closing"),
    [
        ("1 failed, 9 passed in 1.00s", "19 passed, 1 failed, 0 skipped"),
        ("9 passed, 2 errors in 1.00s", "19 passed, 2 failed, 0 skipped"),
        ("no tests ran in 0.01s", "10 passed, 0 failed, 0 skipped"),
        ("3 skipped in 0.10s", "10 passed, 0 failed, 3 skipped"),
        ("make: *** [prove] Error 2", "10 passed, 0 failed, 0 skipped"),
    ],
)
def test_a_run_that_failed_or_ran_no_test_fails_the_whole(total: Total, prove: str, closing: str) -> None:
    code, lines = total(test="10 passed in 1.00s\n", prove=prove + "\n")
    assert (code, lines[-1]) == (1, closing)


@pytest.mark.parametrize(
    ("cores", "memory", "workers"),
    [(2, 20 * GB, 3), (4, 14 * GB, 3), (8, 60 * GB, 12), (8, 15 * GB, 3), (1, 20 * GB, 1), (2, 2 * GB, 1)],
)
def test_a_run_has_as_many_processes_as_cores_and_memory_allow(cores: int, memory: int, workers: int) -> None:
    assert choose_workers(cores, memory) == workers
