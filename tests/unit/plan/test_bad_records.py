"""Functions that parse get the mode which stops a flow, wherever the user has said nothing else."""

from __future__ import annotations

import pytest

from headrace.plan.bad_records import failfast_edits, with_failfast
from headrace.plan.sqltext import edited

MODE = "map('mode', 'FAILFAST')"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("from_json(v, 'a INT')", f"from_json(v, 'a INT', {MODE})"),
        ("FROM_CSV (v, 'a INT, b INT' )", f"FROM_CSV (v, 'a INT, b INT' , {MODE})"),
        ("from_json(v, 'a STRUCT<b: INT, c: INT>')", f"from_json(v, 'a STRUCT<b: INT, c: INT>', {MODE})"),
        (
            "from_json(v, schema_of_json('{\"a\": (1}'))",
            f"from_json(v, schema_of_json('{{\"a\": (1}}'), {MODE})",
        ),
        (
            "from_json(v, 'a INT', map('timestampFormat', 'y'))",
            "from_json(v, 'a INT', map('mode', 'FAILFAST', 'timestampFormat', 'y'))",
        ),
        ("from_json(v, 'a INT', map())", f"from_json(v, 'a INT', {MODE})"),
        (
            "from_json(from_csv(v, 'a STRING').a, 'b INT').b, from_xml(x, 'c INT')",
            f"from_json(from_csv(v, 'a STRING', {MODE}).a, 'b INT', {MODE}).b, from_xml(x, 'c INT', {MODE})",
        ),
        ("from_json(v /* , ( */, -- ,\n 'it''s INT')", f"from_json(v /* , ( */, -- ,\n 'it''s INT', {MODE})"),
    ],
)
def test_a_function_without_a_mode_gets_one(text: str, expected: str) -> None:
    assert edited(text, failfast_edits(text)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "from_json(v, 'a INT', map('mode', 'PERMISSIVE'))",
        "from_json(v, 'a INT', map('MODE', 'permissive'))",
        "from_json(v, 'a INT, bad STRING', map('columnNameOfCorruptRecord', 'bad'))",
        "from_json(v, 'a INT, _corrupt_record STRING')",
        "'from_json(v, x)'",
        "-- from_json(v, x)\n1",
        "`from_json(v, x)`",
        "my_from_json(v, x), get_json_object(v, '$.a'), try_from_json(v, x)",
        "from_json(v, 'a INT'",
        "))(",
    ],
)
def test_what_the_user_means_is_left_alone(text: str) -> None:
    assert edited(text, failfast_edits(text)) == text


def test_the_options_of_the_python_functions_get_it_too() -> None:
    assert with_failfast("a INT", {}) == {"mode": "FAILFAST"}
    assert with_failfast(object(), {"sep": ";"}) == {"sep": ";", "mode": "FAILFAST"}
    assert with_failfast("a INT", {"MODE": "PERMISSIVE"}) == {"MODE": "PERMISSIVE"}
    assert "mode" not in with_failfast("a INT, bad STRING", {"columnNameOfCorruptRecord": "bad"})
    assert "mode" not in with_failfast("a INT, _corrupt_record STRING", {})
    assert with_failfast("a INT", {"columnNameOfCorruptRecord": "bad"})["mode"] == "FAILFAST"
