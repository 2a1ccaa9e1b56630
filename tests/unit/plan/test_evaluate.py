"""Errors of queries."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import AnalysisException

from headrace.errors import SourceLocation
from headrace.plan.evaluate import _failed


class Refused(AnalysisException):
    def __init__(self, condition: str) -> None:
        super().__init__('not "STRING"')
        self.condition = condition

    def getCondition(self) -> str:
        return self.condition


@pytest.mark.parametrize(
    ("condition", "remedy"),
    [
        ("DATATYPE_MISMATCH.BINARY_OP_WRONG_TYPE", 'configuration: {spark.sql.ansi.enabled: "false"}'),
        ("REQUIRES_SINGLE_PART_NAMESPACE", "functions of a catalog do not exist here"),
        ("OTHER", "correct a.py:3"),
    ],
)
def test_frequent_errors_of_spark_have_a_remedy(condition: str, remedy: str) -> None:
    error = _failed(Refused(condition), Path("/"), "orders", SourceLocation("a.py", 3))
    assert error.code == "QUERY_FAILED"
    assert remedy in error.remedies[0]
