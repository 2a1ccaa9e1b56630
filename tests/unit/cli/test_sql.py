"""The interactive shell: keys, commands, completion and history, without Spark."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from headrace.cli.commands.sql import Names, Prompt, is_complete, make_completer
from headrace.cli.output import TextOutput
from headrace.errors import HeadraceError, SourceLocation, SqlInvalidError
from headrace.model.project import ProjectSettings
from headrace.runtime.places import CACHE_VARIABLE
from headrace.shell.definitions import Definitions
from headrace.shell.queries import Answer
from headrace.syntax.sql import SqlText
from headrace.syntax.stream_statements import CreateScan, CreateTable, parse_stream_statement
from headrace.syntax.tokens import Cursor

CTRL_C, CTRL_D = "\x03", "\x04"


@pytest.fixture
def names(make_project: Callable[[], ProjectSettings]) -> Names:
    """A storage with a Kafka table, a Delta table without rows, a scan and a stream."""
    settings = make_project()
    definitions = Definitions(settings)
    for text in (
        "CREATE TABLE clicks_in USING kafka OPTIONS (subscribe 'clicks')",
        "CREATE TABLE clicks (id LONG, page STRING) USING delta",
        "CREATE SCAN clicks_scan ON clicks_in USING STREAM",
    ):
        definition = parse_stream_statement(Cursor(SqlText(text, SourceLocation("f", 1, 1))))
        assert isinstance(definition, CreateTable | CreateScan)
        definitions.add(definition, text)
    definitions.write(
        "stream", "clicks_job", "CREATE STREAM clicks_job INSERT INTO clicks SELECT 1 FROM clicks_scan"
    )
    return Names(definitions)


class Console:
    """A terminal with keys that are typed in advance."""

    def __init__(self, names: Names, keys: PipeInput) -> None:
        self.ran: list[str] = []
        self.shown: list[Answer] = []
        self.fails: BaseException | None = None
        self.stderr = io.StringIO()
        self._names = names
        self._keys = keys

    def type(self, text: str) -> None:
        self._keys.send_text(text + CTRL_D)
        output = TextOutput(stdout=io.StringIO(), stderr=self.stderr)
        with create_app_session(input=self._keys, output=DummyOutput()):
            Prompt(output, self._names, self._run, self.shown.append).loop()

    def _run(self, text: str) -> None:
        self.ran.append(text)
        if self.fails is not None:
            raise self.fails


@pytest.fixture
def console(names: Names, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Console]:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    with create_pipe_input() as keys:
        yield Console(names, keys)


def test_a_statement_of_several_lines_runs_at_its_semicolon(console: Console) -> None:
    console.type("SELECT ';'\rFROM t\r;\rSELECT 2;\r")
    assert console.ran == ["SELECT ';'\nFROM t\n;", "SELECT 2;"]


def test_ctrl_c_clears_a_statement_and_ctrl_d_leaves(console: Console) -> None:
    console.type(f"SELECT 1{CTRL_C}SELECT 2;\r")
    assert console.ran == ["SELECT 2;"]


@pytest.mark.parametrize(
    ("failure", "text"),
    [(KeyboardInterrupt(), "cancelled"), (SqlInvalidError("no such thing"), "error[SQL_INVALID]")],
)
def test_a_statement_that_fails_or_is_cancelled_does_not_end_the_shell(
    console: Console, failure: BaseException, text: str
) -> None:
    console.fails = failure
    console.type("SELECT 1;\rSELECT 2;\r")
    assert console.ran == ["SELECT 1;", "SELECT 2;"]
    assert console.stderr.getvalue().count(text) == 2


def test_commands_show_names_and_columns(console: Console) -> None:
    console.type("\\d\r\\d clicks\r\\d nothing\r\\?\r\\x\r\\q\rSELECT 1;\r")
    assert dict(console.shown[0].rows) == {
        "clicks": "table without rows",
        "clicks_in": "Kafka table",
        "clicks_scan": "scan",
        "clicks_job": "stream",
    }
    assert console.shown[1].rows == (("id", "BIGINT"), ("page", "STRING"))
    assert "\\d NAME" in console.shown[2].note
    assert "SQL_NAME_UNKNOWN" in console.stderr.getvalue()
    assert "\\x is not a command" in console.stderr.getvalue()
    assert console.ran == []


def test_the_history_has_earlier_statements_and_no_secrets(console: Console, tmp_path: Path) -> None:
    console.type("SELECT 1;\rCREATE TABLE k USING kafka OPTIONS (kafka.sasl.password 'hidden');\r")
    file = tmp_path / "cache" / "sql_history"
    assert "SELECT 1;" in file.read_text()
    assert "hidden" not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT * FROM cl", {"clicks", "clicks_in", "clicks_scan", "clicks_job", "CLUSTER BY"}),
        ("SELECT c.pag| FROM clicks c", {"page"}),
        ("SEL", {"SELECT"}),
        ("\\d clicks_s", {"clicks_scan"}),
        ("SELECT clicks_in.off", {"offset"}),
    ],
)
def test_names_and_keywords_are_completed(names: Names, text: str, expected: set[str]) -> None:
    before, _, after = text.partition("|")
    document = Document(before + after, len(before))
    found: Any = make_completer(names).get_completions(document, CompleteEvent())
    assert {one.text for one in found} == expected


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        ("", True),
        ("\\d t", True),
        ("SELECT 1", False),
        ("SELECT ';'", False),
        ("SELECT 1; -- x", True),
        ("'a;", False),
    ],
)
def test_a_statement_is_complete_with_a_semicolon(text: str, complete: bool) -> None:
    assert is_complete(text) is complete
    assert issubclass(SqlInvalidError, HeadraceError)
