"""Views that are refreshed by what has changed: each increment is checked by its own files."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from lake import Lake, rows
from verify.test_proof import refresh, refresh_words, view

from headrace.verify.report import GradeReport, proof_lines

Verify = Any


@pytest.fixture
def bronze(lake: Lake) -> Any:
    table = lake.table()
    flow = table.flow()
    for number in range(3):
        flow.append({0: (10 * number, 10 * number + 10)})
    return table


def increment(gold: Any, bronze: Any, start: int, end: int, add: Any, remove: Any = (), **stated: Any) -> int:
    """An increment of a view: it removes rows of its oldest file by position, and adds a file. `stated`: what
    the commit states, where it is not true."""
    oldest = gold.active()[0]
    before = sum(_rows(one) for one in gold.active())
    actions = [gold.write(add)] if add else []
    if remove:
        actions = [
            gold.remove(oldest),
            {"add": {**oldest, "deletionVector": gold.vector(remove), "dataChange": True}},
            *actions,
        ]
    claims = {
        "strategy": "merge",
        "from": {"default.bronze": start},
        "added": len(add),
        "removed": len(remove),
    }
    words = refresh_words(gold, bronze=(bronze, end))
    total = stated.pop("accepted", before + len(add) - len(remove))
    words |= {"accepted": total, "kept": total - len(add), "increment": {**claims, **stated}}
    return int(gold.commit(actions, operation="WRITE", metadata=words))


def _rows(add: Any) -> int:
    return int(json.loads(add["stats"])["numRecords"]) - int(
        add.get("deletionVector", {}).get("cardinality", 0)
    )


def found(verify: Verify) -> list[tuple[str, int]]:
    return [(one.code, one.place["version"]) for one in verify().findings]


def test_increments_add_up(lake: Lake, verify: Verify, bronze: Any) -> None:
    gold = view(lake, "gold", rows(range(5)), bronze=(bronze, 2))
    increment(gold, bronze, 2, 3, rows(range(10, 13)), [0, 1])
    increment(gold, bronze, 3, 4, rows(range(20, 22)))
    judged = verify.dataset("gold")
    assert judged.view.text == (
        "follows default.bronze v4, the latest; "
        "2 increments since version 1: 5 + 5 added - 2 removed = 8 rows"
    )
    assert (judged.view.rows, judged.table.verdict, verify().proven) == (8, "proven", True)
    # After the rows were computed as a whole, the increments count from there.
    refresh(gold, rows(range(4)), bronze=(bronze, 4))
    assert verify.dataset("gold").view.text == "recomputed from default.bronze v4, the latest"


def test_a_missed_increment_is_found(lake: Lake, verify: Verify, bronze: Any) -> None:
    gold = view(lake, "gold", rows(range(5)), bronze=(bronze, 2))
    increment(gold, bronze, 3, 4, rows(range(10, 13)))
    assert found(verify) == [("INCREMENT_MISSED", 2)]
    assert "the changes of default.bronze after v3" in verify().findings[0].text


def test_an_increment_that_was_applied_twice_is_found(lake: Lake, verify: Verify, bronze: Any) -> None:
    gold = view(lake, "gold", rows(range(5)), bronze=(bronze, 2))
    increment(gold, bronze, 2, 3, rows(range(10, 13)))
    increment(gold, bronze, 2, 3, rows(range(10, 13)))
    assert found(verify) == [("INCREMENT_TWICE", 3)]


def test_rows_that_an_increment_states_and_did_not_remove_are_found(
    lake: Lake, verify: Verify, bronze: Any
) -> None:
    gold = view(lake, "gold", rows(range(5)), bronze=(bronze, 2))
    increment(gold, bronze, 2, 3, rows(range(10, 13)), [1], removed=2)
    (finding,) = verify().findings
    assert (finding.code, finding.place["version"]) == ("COUNTS_DIFFER", 2)
    assert "removed 2; its files and deletion vectors added 3 and removed 1" in finding.text


def test_a_total_that_differs_is_found(lake: Lake, verify: Verify, bronze: Any) -> None:
    gold = view(lake, "gold", rows(range(5)), bronze=(bronze, 2))
    increment(gold, bronze, 2, 3, rows(range(10, 13)), [1], accepted=9)
    assert found(verify) == [("COUNTS_DIFFER", 2)]
    assert "5 before + 3 added - 1 removed = 7" in verify().findings[0].text


def test_a_group_with_two_rows_is_found(lake: Lake, verify: Verify, bronze: Any) -> None:
    """The row of the group as it was has not been removed."""
    gold = view(lake, "gold", rows(range(5)), bronze=(bronze, 2))
    increment(gold, bronze, 2, 3, rows(range(4, 6)), groups=["id"])
    (finding,) = verify().findings
    assert (finding.code, finding.text) == ("KEY_TWICE", "the key id = 4 has 2 rows")


def test_a_commit_of_another_writer_below_an_increment_is_found(
    lake: Lake, verify: Verify, bronze: Any
) -> None:
    gold = view(lake, "gold", rows(range(5)), bronze=(bronze, 2))
    gold.delete([3], gold.active()[0])
    increment(gold, bronze, 2, 3, rows(range(10, 13)))
    assert found(verify) == [("VIEW_CHANGED", 2)]
    assert "the increment of version 3 has kept what it did" in verify().findings[0].text


def test_moved_rows_are_no_fault(lake: Lake, verify: Verify, bronze: Any) -> None:
    gold = view(lake, "gold", rows(range(5)), bronze=(bronze, 2))
    increment(gold, bronze, 2, 3, rows(range(10, 13)))
    gold.rewrite(gold.active(), rows([*range(5), *range(10, 13)]))
    increment(gold, bronze, 3, 4, rows(range(20, 22)), [0])
    assert verify().proven, verify().findings


def test_a_view_that_cannot_be_compared_with_its_query_is_told(
    lake: Lake, verify: Verify, bronze: Any
) -> None:
    view(lake, "gold", rows(range(5)), bronze=(bronze, 4))
    proof = verify()
    gold = next(one for one in proof.datasets if one.view is not None)
    reason = "default.bronze v4 can no longer be read"
    report = GradeReport(grade="records", verdict="unjudged", text="not compared", reasons=(reason,))
    asked = replace(proof, datasets=(replace(gold, query=report),))
    assert (asked.proven, asked.exit_code) == (True, 3)
    assert asked.unmet == (f"gold: query: {reason}",)
    assert any(line.split()[:2] == ["query", "not"] for line in proof_lines(asked))
    assert proof_lines(asked)[-2:] == ["Required, but not judged: the rows of views", asked.unmet[0]]
    # A view whose query gives other rows each time was never to be compared.
    never = replace(asked, datasets=(replace(gold, query=replace(report, applies=False)),))
    assert never.exit_code == 0
