"""What every source promises over several runs: each record once, a known end, and a proof."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from behaviour.sources.conftest import Harness

KINDS = ("kafka", "kinesis", "delta", "files", "other")


@dataclass(frozen=True)
class Runs:
    """What was seen of a source that was read in several runs.

    Args:
        source: The source.
        versions: The table's version after each run.
        lags: The lag after a run, with two more records, and at the end.
        verdicts: What `verify` said before the records were removed that had been read, by grade.
        again: The rows of the first batch, read again as a batch, or the refusal.
    """

    source: Harness
    versions: tuple[int, ...]
    lags: tuple[int | None, ...]
    verdicts: Mapping[str, str]
    again: list[int] | HeadraceError


@pytest.fixture(scope="module", params=KINDS)
def runs(request: pytest.FixtureRequest, make_source: Callable[[str], Harness]) -> Runs:
    source = make_source(request.param)
    versions, lags = [], []

    def run() -> None:
        source.run_well()
        versions.append(source.version())

    source.append(1, 2, 3)
    run()
    lags.append(source.lag())
    source.append(4, 5)
    lags.append(source.lag())
    run()
    run()
    verdicts = source.verdicts()
    try:
        again: list[int] | HeadraceError = source.read_again(source.batches()[source.first_batch])
    except HeadraceError as error:
        again = error
    source.remove_read()
    source.append(6)
    run()
    lags.append(source.lag())
    return Runs(source, tuple(versions), tuple(lags), verdicts, again)


def test_each_record_is_read_exactly_once(runs: Runs) -> None:
    assert runs.source.ids() == [1, 2, 3, 4, 5, 6]


def test_a_run_reads_what_the_source_holds_and_ends(runs: Runs) -> None:
    first, second, nothing_new, last = runs.versions
    assert first < second == nothing_new < last


def test_the_lag_is_right_or_not_known(runs: Runs) -> None:
    source = runs.source
    assert runs.lags == (source.drained, source.waiting, source.drained)


def test_a_range_is_read_again_with_the_same_rows_or_refused(runs: Runs) -> None:
    if runs.source.rereads:
        assert runs.again == [1, 2, 3]
    else:
        assert isinstance(runs.again, HeadraceError) and runs.again.code == "SOURCE_UNSUPPORTED"
        assert runs.again.location is not None and runs.again.remedies


def test_every_grade_is_proven_or_cannot_be_judged(runs: Runs) -> None:
    assert runs.verdicts == runs.source.grades


def test_records_that_are_removed_after_they_were_read_are_no_loss(runs: Runs) -> None:
    assert set(runs.source.verdicts().values()) <= {"proven", "partial", "unjudged"}
