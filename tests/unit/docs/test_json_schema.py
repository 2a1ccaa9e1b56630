"""The schema of the JSON describes every command, and refuses what no command prints."""

from __future__ import annotations

from collections.abc import Iterator

import click
import jsonschema
import pytest

from checked_json import _DEFS, _SCHEMA, check_json, command_of, read_json
from headrace.cli.main import COMMANDS, load_command


def commands(name: str, command: click.Command) -> Iterator[str]:
    if not isinstance(command, click.Group):
        yield name
        return
    for inner, below in command.commands.items():
        yield from commands(f"{name} {inner}", below)


def test_every_command_is_described() -> None:
    jsonschema.Draft202012Validator.check_schema(_SCHEMA)
    named = [one for name in COMMANDS for one in commands(name, load_command(name))]
    assert [name for name in named if name not in _DEFS] == []


def test_the_command_is_found_in_a_command_line() -> None:
    assert command_of(["broker", "topics", "list", "--json"]) == "broker topics list"
    assert command_of(["dry-run", "orders", "--json"]) == "plan"
    assert command_of(["palan", "--json"]) == "AnError"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"stopped": 1, "format_version": 1}', "format_version is not the first key"),
        ('{"format_version": 2, "stopped": 1}', "not in docs/json.schema.json"),
        ('{"format_version": 1, "stopped": 1, "folder": "x"}', "folder"),
        ("[1]", "is no object"),
    ],
)
def test_other_json_is_refused(text: str, problem: str) -> None:
    check_json("engine stop", {"format_version": 1, "stopped": 1})
    with pytest.raises(AssertionError, match=problem):
        read_json("engine stop", text)


def test_an_error_has_the_names_of_all_commands() -> None:
    error = {
        "code": "X",
        "summary": "x",
        "location": None,
        "facts": [],
        "remedies": [],
        "params": {"bootstrap_servers": "a:1"},
        "transient": False,
    }
    check_json("status", {"format_version": 1, "error": error})
    with pytest.raises(AssertionError):
        check_json("status", {"format_version": 1, "error": {**error, "params": {"log_file": "x"}}})
