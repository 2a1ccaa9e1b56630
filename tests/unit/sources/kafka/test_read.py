"""What `read_kafka` refuses before it asks Spark for anything."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import ArgumentInvalidError
from headrace.sources.kafka import read as kafka


@pytest.mark.parametrize(
    ("argument", "value"),
    [("starting_offsets", "newest"), ("format", "jsn"), ("tombstones", "drop"), ("invalid_utf8", "drop")],
)
def test_a_value_that_means_nothing_is_named(argument: str, value: str) -> None:
    given: dict[str, Any] = {argument: value}
    with pytest.raises(ArgumentInvalidError) as caught:
        described = kafka.KafkaRead(topics="sales", **given)
        described.decoder()
        described.spark_options()
    assert caught.value.params == {"argument": argument, "value": value}


@pytest.mark.parametrize(
    ("given", "argument"),
    [
        ({"format": "json"}, "schema"),
        ({"format": "text", "schema": object()}, "schema"),
        ({"format": "raw", "schema": object()}, "schema"),
        ({"format": "raw", "invalid_utf8": "replace"}, "invalid_utf8"),
    ],
)
def test_what_does_not_go_with_a_format_is_refused(given: dict[str, Any], argument: str) -> None:
    with pytest.raises(ArgumentInvalidError) as caught:
        kafka.KafkaRead(topics="sales", **given).decoder()
    assert caught.value.params["argument"] == argument
