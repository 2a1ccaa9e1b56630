"""Values and keys of a sink are those of a table only if they are certainly the same."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from headrace.verify.sink_rows import Wanted, id_of, is_same, read_json, read_value

NOON = datetime(2024, 2, 29, 12, tzinfo=UTC)
EARLY = datetime(1900, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("kind", "mine", "theirs", "same"),
    [
        ("long", 5, 5, True),
        ("long", 5, "5", True),
        ("long", 5, 6, False),
        ("long", 1, True, False),
        ("long", 5, None, False),
        ("long", None, None, True),
        ("long", 5, {"a": 1}, False),
        ("long", 9223372036854775807, Decimal("9223372036854775807"), True),
        ("string", "5", 5, False),
        ("string", "", None, False),
        ("string", "ü", "ü", True),
        ("boolean", True, "true", True),
        ("boolean", True, False, False),
        ("boolean", True, 1, False),
        ("double", 0.1, Decimal("0.1"), True),
        ("double", 1e10, "1.0E10", True),
        ("double", math.nan, "NaN", True),
        ("double", math.nan, math.nan, True),
        ("double", -math.inf, "-Infinity", True),
        ("double", 0.1, "x", False),
        ("decimal(10,2)", Decimal("5.00"), Decimal("5"), True),
        ("decimal(10,2)", Decimal("5.00"), "5.001", False),
        ("date", date(2024, 2, 29), "2024-02-29", True),
        ("date", date(2024, 2, 29), "2024-03-01", False),
        ("date", date(1500, 1, 1), "1500-01-10", None),
        ("date", date(2024, 2, 29), "text", None),
        ("timestamp", NOON, "2024-02-29T13:00:00.000000+01:00", True),
        ("timestamp", NOON, "2024-02-29T13:00:00.000000Z", False),
        ("timestamp", NOON, datetime(2024, 2, 29, 12), None),
        ("timestamp", EARLY, "1900-01-01T00:19:00.000000+00:19", None),
        ("timestamp_ntz", datetime(2024, 2, 29), "2024-02-29T00:00:00.000000", True),
        ("timestamp_ntz", datetime(2024, 2, 29), datetime(2024, 2, 28), False),
    ],
)
def test_values_of_a_table_and_of_a_sink(kind: str, mine: Any, theirs: Any, same: bool | None) -> None:
    assert is_same(kind, mine, theirs) is same


KINDS = {"a": "string", "b": "decimal(10,2)", "c": "boolean", "d": "date"}


@pytest.mark.parametrize("text", ["", ":", "%3A", "%25", "a%:b", "ü"])
def test_a_key_is_found_again_by_its_id(text: str) -> None:
    key = (text, Decimal("-7.20"), False, date(2024, 2, 29))
    wanted = Wanted(keys=KINDS, columns={}, asked=frozenset(), size=1)
    id = id_of(key)
    assert id is not None and wanted.key_of(id) == key
    assert Wanted(keys={"a": "string"}, columns={}, asked=frozenset(), size=1).key_of(text) == (text,)


def test_ids_that_no_row_can_have() -> None:
    wanted = Wanted(keys=KINDS, columns={}, asked=frozenset(), size=1)
    for id in ("a", "a:1:true", "a:x:true:2024-01-01", "a:1.00:True:2024-01-01", "a:1.005:true:2024-01-01"):
        assert wanted.key_of(id) is None
    assert read_value("byte", "128") is None and read_value("byte", "-128") == -128
    # Spark writes it in two ways, by its settings.
    assert id_of((Decimal("0E-18"),)) is None


def test_a_text_that_is_no_row() -> None:
    assert read_json("[1]") == read_json("x") == read_json(None) == {}
    assert read_json('{"a": 0.10}') == {"a": Decimal("0.10")}
