"""Conflicts of a commit, as Delta reports them to a process with and without its Python package."""

from __future__ import annotations

import pytest

from headrace.errors import BatchFencedError
from headrace.sinks.delta.commit import _fenced_by_conflict
from headrace.sinks.target import BatchStamp

STAMP = BatchStamp(pipeline="p", flow="f", checkpoint="headrace-c", batch=3, ranges=())
BOTH_FORMS = [
    "An error occurred while calling o12.commit.\n: org.apache.spark.sql.delta."
    "ConcurrentTransactionException: [DELTA_CONCURRENT_TRANSACTION] This error occurs when ..",
    "[DELTA_CONCURRENT_TRANSACTION] This error occurs when multiple streaming queries ..",
]


@pytest.mark.parametrize("text", BOTH_FORMS, ids=["py4j", "delta imported"])
def test_a_commit_of_the_same_checkpoint_meanwhile_fences_the_batch(text: str) -> None:
    with pytest.raises(BatchFencedError), _fenced_by_conflict(STAMP):
        raise RuntimeError(text)


def test_another_conflict_is_left_to_be_tried_again() -> None:
    with pytest.raises(RuntimeError), _fenced_by_conflict(STAMP):
        raise RuntimeError("[DELTA_CONCURRENT_APPEND.WITHOUT_HINT] Transaction conflict detected.")
