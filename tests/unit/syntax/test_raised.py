"""The exception of a user's function in Spark's message."""

from __future__ import annotations

from pathlib import Path

from headrace.syntax.locations import find_raised

TRACE = """\
PythonException: [PYTHON_EXCEPTION] An exception was thrown from the Python worker: \
Traceback (most recent call last):
  File "{root}/transformations/extra.py", line 7, in divided
    return 6 // n
           ~~^^~~
  File "/usr/lib/python3.11/site-packages/pyspark/sql/worker.py", line 9, in call
    return function()
ZeroDivisionError: integer division or modulo by zero
 SQLSTATE: 38000
"""


def test_the_innermost_line_of_the_pipeline_is_found(tmp_path: Path) -> None:
    found = find_raised(TRACE.replace("{root}", str(tmp_path)), tmp_path)
    assert found is not None
    assert (found.function, str(found.location)) == ("divided", "transformations/extra.py:7")
    assert found.exception == "ZeroDivisionError: integer division or modulo by zero"


def test_a_trace_without_a_file_of_the_pipeline_is_left_alone(tmp_path: Path) -> None:
    assert find_raised(TRACE.replace("{root}", "/elsewhere"), tmp_path) is None
    assert find_raised("java.lang.ArithmeticException: divide by zero", tmp_path) is None
