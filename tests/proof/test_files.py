"""Files under faults: a failure at each point, changed and gone in the middle; each file exactly once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.run.failpoints import Point
from landing import Site
from proof.shop import fail_at
from waiting import until


@pytest.fixture
def site(tmp_path: Path, spark: object) -> Site:
    return Site(tmp_path / "site")


def check(site: Site, expected: list[int]) -> None:
    """The table holds exactly what was put into the folder, and `verify` agrees."""
    assert site.ids() == expected
    proof = site.verify()
    assert proof.proven, proof.to_json()
    assert proof.datasets[0].flows[0].grades[2].figures["files"] == len(expected)


def test_a_failure_before_and_after_the_commit_reads_each_file_once(site: Site) -> None:
    points: tuple[Point, ...] = ("before-commit", "after-commit")
    for batch, point in enumerate(points):
        site.put(f"{batch}.json", {"id": batch, "page": "p"})
        fail_at(site.run, point, batch)
        assert site.ids() == list(range(batch + (point == "after-commit")))
    site.put("2.json", {"id": 2, "page": "p"})
    site.run_well()
    check(site, [0, 1, 2])


def test_a_file_that_is_written_while_it_is_read_is_read_again_whole(site: Site) -> None:
    path = site.put("a.json", {"id": 1, "page": "p"})
    site.put("b.json", {"id": 2, "page": "p"})
    with site.held_at("before-commit", 0) as held:
        held.wait()
        with path.open("a") as file:
            file.write('{"id": 3, "page": "p"}\n')
        held.go_on()
    (event,) = held.retries
    assert event.error["code"] == "FILE_CHANGED"
    assert event.error["params"]["paths"] == [str(path)]
    assert site.ids() == [1, 2, 3]
    assert site.verify().proven


@pytest.mark.guarantee
def test_a_file_that_vanishes_before_it_is_read_is_never_passed_over(site: Site) -> None:
    path = site.put("a.json", {"id": 1, "page": "p"})
    site.put("b.json", {"id": 2, "page": "p"})
    kept = site.root / "kept.json"
    os.link(path, kept)
    with site.held_at("before-commit", 0) as held:
        held.wait()
        path.unlink()
        held.go_on()
    assert [error.code for error in held.errors] == ["FILE_VANISHED"]
    assert held.errors[0].params["paths"] == [str(path)]
    assert site.ids() == []
    kept.rename(path)
    site.run_well()
    check(site, [1, 2])


def test_a_new_checkpoint_goes_on_without_a_vanished_file(site: Site) -> None:
    path = site.put("a.json", {"id": 1, "page": "p"})
    site.put("b.json", {"id": 2, "page": "p"})
    with site.held_at("before-commit", 0) as held:
        held.wait()
        path.unlink()
        held.go_on()
    (error,) = held.errors
    assert error.code == "FILE_VANISHED"
    assert "headrace reset visits" in error.remedies[-1]
    site.run_well(reset=frozenset({"visits"}))
    check(site, [2])


def test_a_vanished_file_is_given_up_only_where_the_spec_says_so(site: Site) -> None:
    site.put("a.json", {"id": 1, "page": "p"})
    site.run_well()
    path = site.put("b.json", {"id": 2, "page": "p"})
    site.put("c.json", {"id": 3, "page": "p"})
    site.write_spec(on_data_loss="record")
    with site.held_at("before-commit", 1) as held:
        held.wait()
        path.unlink()
        held.go_on()
    assert held.errors == []
    assert site.ids() == [1, 3]
    proof = site.verify()
    assert proof.proven, proof.to_json()
    records = proof.datasets[0].flows[0].grades[2]
    assert (records.figures["files"], records.figures["lost"]) == (2, 1)
    # What is given up stays given up, and is no loss a second time.
    site.put("b.json", {"id": 2, "page": "p"})
    site.run_well()
    assert site.ids() == [1, 3]


@pytest.mark.parametrize("policy", ["refuse", "record"])
def test_a_file_that_vanishes_after_spark_listed_it_is_called_by_its_name(site: Site, policy: str) -> None:
    path = site.put("a.json", {"id": 1, "page": "p"})
    site.put("b.json", {"id": 2, "page": "p"})
    site.write_spec(on_data_loss=policy)
    with site.held_at("batch-start", 0) as held:
        held.wait()
        path.unlink()
        held.go_on()
    if policy == "refuse":
        assert [error.code for error in held.errors] == ["FILE_VANISHED"]
        assert held.errors[0].params["paths"] == [str(path)]
        return
    assert held.errors == []
    assert [event.error["code"] for event in held.retries] == ["FILE_CHANGED"]
    assert site.ids() == [2]
    proof = site.verify()
    assert proof.proven, proof.to_json()
    assert proof.datasets[0].flows[0].grades[2].figures["lost"] == 1


def test_a_file_that_was_not_there_when_spark_listed_the_batch_is_not_passed_over(site: Site) -> None:
    """Spark leaves out, without a word, what is gone when it begins to plan a batch."""
    path = site.put("a.json", {"id": 1, "page": "p"})
    kept = site.root / "kept.json"
    with site.held_at("before-commit", 0) as held:
        held.wait()
        path.rename(kept)
        held.go_on()
        until(lambda: bool(held.retries), "the batch is tried again")
    assert [error.code for error in held.errors] == ["FILE_VANISHED"]
    with site.held_at("batch-start", 0) as held:
        held.wait()
        kept.rename(path)
        held.go_on()
    assert [event.error["code"] for event in held.retries] == ["FILE_CHANGED"]
    check(site, [1])
