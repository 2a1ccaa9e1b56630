"""Spark's messages about a state that does not fit a query."""

from __future__ import annotations

import pytest

from headrace.run.failures import find_mismatch

KEYS = """[STREAM_FAILED] Query terminated with exception: [STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE] \
Provided key schema does not match existing state key schema.
Please check number and type of fields.
Existing key_schema=StructType(StructField(window,StructType(StructField(start,TimestampType,true),\
StructField(end,TimestampType,true)),false),StructField(name,StringType,true)) and new \
key_schema=StructType(StructField(id,LongType,true)).
If you want to force running the query without schema validation, please set a conf to false."""
OPERATORS = """[STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA] Streaming stateful operator name \
does not match with the operator in state metadata. This likely to happen when user adds an operator.
Stateful operators in the metadata: [(OperatorId: 0 -> OperatorName: stateStoreSave)];
Stateful operators in current batch: [(OperatorId: 1 -> OperatorName: dedupe), \
(OperatorId: 0 -> OperatorName: new)]. SQLSTATE: 42K03"""
MISSING = """[STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY] Cannot restart streaming query with \
stateful operators because the state directory is empty or missing.
Stateful operators in current batch: [(OperatorId: 0 -> OperatorName: dedupeWithinWatermark)]. \
This typically occurs"""


@pytest.mark.parametrize(
    ("message", "was", "now"),
    [
        (
            KEYS,
            "the state keys (window STRUCT(start TIMESTAMP, end TIMESTAMP), name STRING)",
            "the state keys (id LONG)",
        ),
        (OPERATORS, "the state of an aggregation", "the state of dropDuplicates, new"),
        (MISSING, "no state", "the state of dropDuplicatesWithinWatermark"),
    ],
)
def test_a_mismatch_names_the_state_of_the_checkpoint_and_of_the_query(
    message: str, was: str, now: str
) -> None:
    found = find_mismatch(message)
    assert found is not None
    assert (found.was, found.now) == (was, now)


def test_any_other_message_is_no_mismatch() -> None:
    assert find_mismatch("[STREAM_FAILED] Query terminated with exception: [DIVIDE_BY_ZERO]") is None
