"""What every source refuses before anything is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from behaviour.sources.conftest import TWICE

if TYPE_CHECKING:
    from behaviour.sources.conftest import Harness


def test_a_source_that_does_not_exist_is_an_error_at_the_line_that_reads_it(source: Harness) -> None:
    source.remove()
    error = source.refusal()
    assert error.code == source.missing
    assert error.location is not None and error.location.path.endswith("events.py")
    assert error.remedies or (source.missing == "QUERY_FAILED" and "no_such_format" in error.headline)


def test_two_reads_of_one_source_are_refused_where_they_can_be_told(source: Harness) -> None:
    source.write_code(TWICE)
    if source.shares_reads:
        source.append(1)
        assert source.run("both").outcome == "completed"
        source.append(2)
        assert source.run("both").outcome == "completed"
    elif source.compares_reads:
        error = source.refusal()
        assert error.code == "SOURCE_READ_TWICE"
        assert error.location is not None and error.remedies
    else:
        source.append(1)
        assert source.run("both").outcome == "completed"
