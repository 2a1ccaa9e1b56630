"""What `read_kafka` refuses before it asks Spark for anything."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import ArgumentInvalidError
from headrace.model.connections import KafkaConnection
from headrace.sources.kafka import read as kafka


@pytest.mark.parametrize(
    ("argument", "value"), [("starting_offsets", "newest"), ("format", "jsn"), ("on_null", "drp")]
)
def test_a_value_that_means_nothing_is_named(argument: str, value: str) -> None:
    given: dict[str, Any] = {argument: value}
    with pytest.raises(ArgumentInvalidError) as caught:
        kafka.read(None, KafkaConnection(), "sales", **given)  # type: ignore[arg-type]
    assert caught.value.params == {"argument": argument, "value": value}
