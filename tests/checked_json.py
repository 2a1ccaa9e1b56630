"""Checks what commands print as JSON against ``docs/json.schema.json``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from headrace.cli.main import ALIASES
from headrace.cli.output import JsonOutput, Output, with_version

_SCHEMA = json.loads((Path(__file__).parents[1] / "docs" / "json.schema.json").read_text(encoding="utf-8"))
_DEFS = _SCHEMA["$defs"]
_ONLY_ERRORS = "AnError"


def read_json(command: str, text: str) -> list[Any]:
    """The objects that a command has printed, one a line or one in all; each is checked."""
    decoder, found, rest = json.JSONDecoder(), list[Any](), text.strip()
    while rest:
        one, end = decoder.raw_decode(rest)
        check_json(command, one)
        found.append(one)
        rest = rest[end:].strip()
    return found


def check_data(command: str, data: Any) -> None:
    """Check what a command would print for the data of its result."""
    check_json(command, json.loads(json.dumps(with_version(data), default=str)))


def check_json(command: str, found: Any) -> None:
    assert isinstance(found, dict), f"headrace {command} printed JSON that is no object: {found!r}"
    assert next(iter(found), None) == "format_version", f"format_version is not the first key: {[*found][:3]}"
    error = best_match(_validator(command).iter_errors(found))
    assert error is None, (
        f"headrace {command} printed JSON that is not in docs/json.schema.json, at {error.json_path}: "
        f"{error.message[:500]}. tools/make_docs.py makes the schema from tools/json_schema.py."
    )


@cache
def _validator(command: str) -> Draft202012Validator:
    return Draft202012Validator({**_DEFS[command], "$defs": _DEFS})


def command_of(arguments: Sequence[str]) -> str:
    """The command of a command line, as the schema names it."""
    if "--version" in arguments[:2]:
        return "--version"
    words = [one for one in arguments if not one.startswith("-")]
    words[:1] = [ALIASES.get(one, one) for one in words[:1]]
    names = (" ".join(words[:number]) for number in (3, 2, 1))
    return next((name for name in names if name in _DEFS and name != _ONLY_ERRORS), _ONLY_ERRORS)


def checking(build_output: Callable[[Sequence[str]], Output]) -> Callable[[Sequence[str]], Output]:
    """The function `build_output` of the command line, with outputs that check their JSON."""

    def build(arguments: Sequence[str]) -> Output:
        output = build_output(arguments)
        if isinstance(output, JsonOutput):
            _check_output(output, command_of(arguments))
        return output

    return build


def _check_output(output: JsonOutput, command: str) -> None:
    write, pour = output._write, output.pour

    def checked_write(data: Any, indent: int | None = None) -> None:
        write(data, indent)
        check_data(command, data)

    def checked_pour(lines: Iterable[str], *, at_once: bool) -> None:
        def checked() -> Iterable[str]:
            for line in lines:
                check_json(command, json.loads(line))
                yield line

        pour(checked(), at_once=at_once)

    output._write = checked_write  # type: ignore[method-assign]
    output.pour = checked_pour  # type: ignore[method-assign]
