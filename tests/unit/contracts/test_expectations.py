"""The text of conditions."""

from __future__ import annotations

import pytest

from headrace.contracts.expectations import text_of_column

UDF = (
    "and(<lambda>(columnnodeexpression(UnresolvedAttribute(List(a),None,false,Origin(None,None,None,None,None,"
    "None,None,Some([Ljava.lang.StackTraceElement;@{address}),None,None)))), >(b, 1))"
)


@pytest.mark.parametrize("address", ["409836ab", "447c3804"])
def test_the_text_of_a_python_function_is_the_same_in_every_process(address: str) -> None:
    assert text_of_column(UDF.format(address=address)) == "and(<lambda>(a), >(b, 1))"


@pytest.mark.parametrize("number", [5, 6])
def test_the_variables_of_lambda_functions_are_numbered_anew(number: int) -> None:
    text = f"exists(a, x_{number} -> >(x_{number}, x_7)) and f((x_8, y_{number}) -> y_{number})"
    assert text_of_column(text) == "exists(a, x_0 -> >(x_0, x_7)) and f((x_1, y_2) -> y_2)"
