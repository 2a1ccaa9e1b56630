"""The coordinates of rejected rows, in words."""

from __future__ import annotations

from headrace.contracts.rejected import describe_record


def test_the_coordinates_of_records_of_topics_and_files() -> None:
    of_topic = {"topic": "orders", "partition": 0, "offset": 7, "path": None}
    assert describe_record(of_topic) == "orders/0 offset 7"
    of_file = {"topic": None, "partition": None, "offset": 3, "path": "file:/a.json"}
    assert describe_record(of_file) == "file:/a.json, row 3"
    assert describe_record({**of_file, "offset": None}) == "file:/a.json"
    assert describe_record({}) == ""
