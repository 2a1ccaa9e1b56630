"""Errors render whole, do not change after they are made, and survive copies and pickling."""

from __future__ import annotations

import pickle
import traceback

import click
import pytest

from headrace.cli.output import error_lines
from headrace.errors import PlanFailedError, RefusedError, SourceLocation, UsageError, first_line
from headrace.model.secrets import Redactor


def test_str_renders_the_whole_error() -> None:
    error = UsageError(
        "big reads `order`, which no file declares",
        location=SourceLocation("big.sql", 2, 22),
        facts=["nothing was written", "two\nlines"],
        remedies=["did you mean `orders`?", "headrace plan"],
    )
    assert str(error) == (
        "[USAGE] big reads `order`, which no file declares\n"
        "  --> big.sql:2:22\n"
        "  nothing was written\n"
        "  two\n"
        "  lines\n"
        "  help: did you mean `orders`?\n"
        "        headrace plan\n"
        "  more: headrace explain USAGE"
    )


def test_an_error_is_frozen() -> None:
    error = RefusedError("no", facts=["a"])
    for name in ("summary", "location", "facts", "remedies", "params", "args", "anything"):
        with pytest.raises(AttributeError, match="frozen"):
            setattr(error, name, ())
    error.add_note("python's own fields can be set")
    assert str(error).startswith("[REFUSED] no\n  a\n")


def test_a_copy_keeps_cause_traceback_and_class() -> None:
    def fail() -> None:
        try:
            raise ValueError("broken")
        except ValueError as error:
            raise RefusedError("no", params={"flow": "x"}) from error

    with pytest.raises(RefusedError) as raised:
        try:
            fail()
        except RefusedError as error:
            raise error.with_location(SourceLocation("a.py", 3)) from error.__cause__
    copied = raised.value
    assert (copied.location, copied.params) == (SourceLocation("a.py", 3), {"flow": "x"})
    trace = "".join(traceback.format_exception(copied))
    assert trace.count("[REFUSED] no") == 1
    assert "in fail" in trace
    assert "ValueError: broken" in trace


def test_a_location_is_given_once() -> None:
    error = UsageError("no", location=SourceLocation("a.py", 3))
    assert error.with_location(SourceLocation("b.py", 1)) is error
    assert error.with_(location=SourceLocation("b.py", 1)).location == SourceLocation("b.py", 1)


def test_each_error_of_a_plan_has_its_own_remedies() -> None:
    first = UsageError("no topic", location=SourceLocation("a.py", 3), remedies=["create it"])
    failed = PlanFailedError([first, UsageError("no table", facts=["a fact"], remedies=["declare it"])])
    below = failed.with_(facts=(*failed.facts, "not checked: c"), remedies=(*failed.remedies, "add both"))
    assert str(below).splitlines() == [
        "[PLAN_FAILED] the pipeline has 2 errors",
        "",
        "  [USAGE] no topic",
        "    --> a.py:3",
        "    help: create it",
        "    more: headrace explain USAGE",
        "",
        "  [USAGE] no table",
        "    a fact",
        "    help: declare it",
        "    more: headrace explain USAGE",
        "",
        "  not checked: c",
        "  help: add both",
    ]
    assert [line.strip() for line in map(click.unstyle, error_lines(below))][1:] == [
        line.strip().replace("[USAGE]", "error[USAGE]") for line in str(below).splitlines()[1:]
    ]
    assert Redactor({"topic"}).error(failed).errors[0].summary == "no ***"


def test_an_error_can_be_pickled() -> None:
    error = PlanFailedError([UsageError("one"), UsageError("two", location=SourceLocation("a.py", 3))])
    loaded = pickle.loads(pickle.dumps(error))
    assert str(loaded) == str(error)
    assert [one.summary for one in loaded.errors] == ["one", "two"]


def test_the_first_line_of_an_exception_is_empty_if_it_has_no_text() -> None:
    assert [first_line(error) for error in (OSError(), ValueError("\n a\nb"))] == ["", "a"]
