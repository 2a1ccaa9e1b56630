"""No error code is forgotten: its remedy is walked, or a reason is written down."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Iterator
from pathlib import Path

import click

import headrace.errors
from headrace.cli.commands.explain import build_pages
from headrace.cli.main import load_command
from remedies.every import NOT_WALKED, SITUATIONS
from remedies.walk import COMMAND


def test_every_error_code_is_walked_or_has_a_reason() -> None:
    walked = {one.code for one in SITUATIONS}
    codes = set(build_pages())
    assert walked <= codes, walked - codes
    assert not walked & set(NOT_WALKED), "such a code needs no reason"
    assert walked | set(NOT_WALKED) == codes, codes - walked - set(NOT_WALKED)


def test_every_situation_has_a_title_of_its_own() -> None:
    ids = [one.id for one in SITUATIONS]
    assert len(set(ids)) == len(ids), sorted(one for one in ids if ids.count(one) > 1)


def commands_of(file: Path) -> Iterator[str]:
    """The command lines of the remedies in a file, with a word for each value."""
    for call in ast.walk(ast.parse(file.read_text())):
        if isinstance(call, ast.keyword) and call.arg == "remedies":
            for text in _texts(call.value):
                found = COMMAND.search(text)
                if found is not None:
                    yield found[1] or found[2]


def _texts(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.JoinedStr):
        parts = (part.value if isinstance(part, ast.Constant) else "1" for part in node.values)
        yield "".join(map(str, parts))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    for below in [] if isinstance(node, ast.JoinedStr) else ast.iter_child_nodes(node):
        yield from _texts(below)


def test_every_command_of_a_remedy_can_be_typed() -> None:
    seen = 0
    for file in sorted(Path(headrace.errors.__file__).parent.rglob("*.py")):
        for line in commands_of(file):
            _, *words = shlex.split(line)
            if not words or words[0].startswith("-"):
                continue
            seen += 1
            try:
                load_command(words[0]).make_context(words[0], words[1:], resilient_parsing=False)
            except (click.exceptions.Exit, click.BadParameter):
                continue
            except click.UsageError as error:
                raise AssertionError(f"{file}: {line}: {error.message}") from error
    assert seen > 40
