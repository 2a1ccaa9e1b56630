"""The statistics of a file of which rows are deleted."""

from __future__ import annotations

import json

import pytest

from headrace.sinks.delta.data_files import _without_tight_bounds

_VALUES = '"minValues":{"x":1234567890123456789012345.1234567891,"s":"\\"tightBounds\\":true"}'


@pytest.mark.parametrize(
    "end", ["", ',"tightBounds":true', ', "tightBounds" : true ', ',"tightBounds":false']
)
def test_only_the_mark_of_exact_bounds_changes(end: str) -> None:
    found = _without_tight_bounds(f'{{"numRecords":3,{_VALUES}{end}}}')
    assert found is not None and f'"numRecords":3,{_VALUES}' in found
    assert json.loads(found)["tightBounds"] is False


def test_a_file_without_statistics_still_has_none() -> None:
    assert _without_tight_bounds(None) is None


def test_statistics_without_any_value_get_the_mark() -> None:
    assert json.loads(_without_tight_bounds("{ }") or "") == {"tightBounds": False}
