"""The numbers of test runs and of benchmarks."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from bench.latency import load_commits
from bench.results import expect, rows_of
from deltalake import DeltaTable, write_deltalake
from tools.choose_proofs import BUDGET_S, PACKAGES, PARTS, choose, find_proofs, split
from tools.total import main

from workers import choose_workers, free_memory, in_blocks

GB = 1 << 30
TESTS = Path(__file__).parents[1]

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


def test_the_limit_of_a_container_counts(tmp_path: Path) -> None:
    (tmp_path / "memory.current").write_text("1000\n")
    (tmp_path / "memory.max").write_text("5000\n")
    assert free_memory(tmp_path) == 4000
    (tmp_path / "memory.max").write_text("max\n")
    assert free_memory(tmp_path) > 4000
    assert free_memory(tmp_path / "none") > 4000


def test_each_process_begins_with_quick_tests_and_has_its_share_of_the_slow_ones() -> None:
    quick = [("unit", number) for number in range(20)]
    slow = [
        (file, number) for file, count in (("a", 4), ("b", 3), ("c", 2), ("d", 1)) for number in range(count)
    ]
    ordered = in_blocks(
        [*slow, *quick],
        lambda item: None if item[0] == "unit" else item[0],
        3,
        {"a": 10.0, "b": 60.0, "c": 50.0, "d": 20.0},
    )
    blocks = [ordered[0:10], ordered[10:20], ordered[20:30]]
    assert sorted(ordered) == sorted([*slow, *quick])
    assert [sorted({file for file, _ in block if file != "unit"}) for block in blocks] == [
        ["b"],
        ["c"],
        ["a", "d"],
    ]
    assert all(block[0][0] == "unit" for block in blocks)


def test_the_parts_of_the_proofs_are_all_proofs() -> None:
    files = find_proofs(TESTS)
    chosen = [choose(files, {}, commits, ()).files for commits in range(100, 100 + PARTS)]
    assert sorted(file for part in chosen for file in part) == files


def test_a_check_has_time_for_proofs_of_changed_packages() -> None:
    seconds = json.loads((TESTS / "seconds.json").read_text())
    lengths = [sum(seconds.get(file, 20.0) for file in part) for part in split(find_proofs(TESTS), seconds)]
    assert max(lengths) < BUDGET_S - 60
    assert sum(lengths) / PARTS < BUDGET_S - 120


def test_the_parts_of_the_proofs_take_about_the_same_time() -> None:
    seconds = {"a": 90.0, "b": 50.0, "c": 45.0, "d": 30.0, "e": 30.0, "f": 10.0, "g": 5.0}
    assert split(seconds, seconds, 3) == [["a"], ["b", "e", "g"], ["c", "d", "f"]]


def test_a_check_runs_the_proofs_of_changed_packages() -> None:
    files = ["proof/test_kill.py", "proof/test_topic.py", "proof/test_table_care.py", "proof/test_engine.py"]
    seconds = {file: float(40 - number) for number, file in enumerate(files)}

    def changed(*changes: str) -> list[str]:
        choice = choose(files, seconds, 0, changes)
        assert choice.files == [files[0]]
        return sorted(choice.changed)

    assert changed() == []
    assert changed("src/headrace/run/batch.py") == [], "its proof is in the chosen part"
    assert changed("src/headrace/sources/kafka/source.py") == [files[1]]
    assert changed("src/headrace/maintain/condition.py", "tests/proof/test_engine.py") == [files[3], files[2]]


def test_proofs_of_changed_packages_for_which_one_check_has_no_time_are_in_others() -> None:
    files = ["proof/test_kill.py", "proof/test_stop.py", "proof/test_once.py"]
    seconds = {files[0]: BUDGET_S - 100, files[1]: 90.0, files[2]: 80.0}
    choices = [choose(files, seconds, PARTS * number, {"src/headrace/run/batch.py"}) for number in range(9)]
    for choice in choices:
        assert choice.files == [files[0]]
        assert sorted([*choice.changed, *choice.left_out]) == [files[2], files[1]]
    assert {tuple(choice.changed) for choice in choices} == {(files[1],), (files[2],)}


def test_every_name_of_a_proof_belongs_to_a_file() -> None:
    names = {Path(file).stem.removeprefix("test_") for file in find_proofs(TESTS)}
    assert {name for proofs in PACKAGES.values() for name in proofs} - {*names} == set()
    assert names - {name for proofs in PACKAGES.values() for name in proofs} == set()


def test_a_benchmark_counts_each_record_once_and_fails_if_one_is_missing(tmp_path: Path) -> None:
    for number in range(4):
        at = datetime(2026, 1, 1, 0, 0, number, tzinfo=UTC)
        write_deltalake(tmp_path, pa.table({"timestamp": [at] * 3}), mode="append")
    assert DeltaTable(tmp_path).optimize.compact()["numFilesAdded"] == 1
    produced = [at for commit in load_commits(tmp_path) for at in commit.produced]
    assert (len(produced), rows_of(tmp_path)) == (12, 12)
    expect("the table", len(produced), 12)
    with pytest.raises(SystemExit, match="12 records were measured, and 13 were produced"):
        expect("the table", len(produced), 13)
