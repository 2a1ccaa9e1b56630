"""Errors of Spark's ANSI mode, in place of which other platforms have NULL."""

from __future__ import annotations

import re
from collections.abc import Mapping

from headrace.errors import SourceLocation
from headrace.model.project import ANSI_SETTING

_RAISED = re.compile(
    r"\b(?:CAST_INVALID_INPUT|CAST_OVERFLOW|CANNOT_PARSE_(?:TIMESTAMP|DATE|TIME|DECIMAL)|DIVIDE_BY_ZERO"
    r"|REMAINDER_BY_ZERO|(?:BINARY_|INTERVAL_)?ARITHMETIC_OVERFLOW|INTERVAL_DIVIDED_BY_ZERO"
    r"|INVALID_ARRAY_INDEX|INVALID_ARRAY_INDEX_IN_ELEMENT_AT|NUMERIC_VALUE_OUT_OF_RANGE"
    r"|DATETIME_FIELD_OUT_OF_BOUNDS|INVALID_FRACTION_OF_SECOND)(?:\.[A-Z_]+)?\]"
)
"""The conditions of rows for which the older mode gives NULL, as they begin a message of Spark's."""
_REFUSED = re.compile(
    r"DATATYPE_MISMATCH\.(?:BINARY_OP_WRONG_TYPE|BINARY_OP_DIFF_TYPES|DATA_DIFF_TYPES|UNEXPECTED_INPUT_TYPE"
    r"|CAST_WITH_CONF_SUGGESTION)"
)
"""The conditions of queries in which the older mode casts texts."""
_FACT = "Spark's ANSI mode is on here; where a platform has it off by default, {0}"


def is_off(*settings: Mapping[str, str]) -> bool:
    """Whether ANSI mode is off; later settings replace earlier ones."""
    given = [one[ANSI_SETTING] for one in settings if ANSI_SETTING in one]
    return bool(given) and given[-1].strip().lower() == "false"


def explain_condition(condition: str, text: str, location: SourceLocation) -> tuple[list[str], list[str]]:
    """The facts and remedies for an error of planning: none if it is not one of ANSI mode."""
    if _REFUSED.fullmatch(condition) and ('"STRING"' in text or condition.endswith("CONF_SUGGESTION")):
        fact = _FACT.format("Spark casts the texts, and others than numbers give NULL")
        return [fact], ["cast the columns in the query", *_settings(location)]
    return explain_failure(f"{condition}]", location)


def explain_failure(text: str, location: SourceLocation) -> tuple[list[str], list[str]]:
    """The facts and remedies for the message of a batch that has failed: none if it is not of ANSI mode."""
    if _RAISED.search(text) is None:
        return [], []
    functions = "use try_cast, try_divide or another function that gives NULL"
    return [_FACT.format("the value is NULL")], [functions, *_settings(location)]


def _settings(location: SourceLocation) -> list[str]:
    if location.is_sql:
        of_flow = f"above the statement:   SET {ANSI_SETTING} = false;"
    else:
        of_flow = f'in the decorator:   spark_conf={{"{ANSI_SETTING}": "false"}}'
    return [
        f"or turn ANSI mode off for this query, {of_flow}",
        "or for the whole pipeline, in headrace.yml:   compatibility: {ansi: false}",
    ]
