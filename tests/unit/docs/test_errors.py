"""Errors keep their promises: one code each, a page that is up to date, remedies that exist."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import click
import pytest

import headrace.errors
from headrace.cli.main import ALIASES, COMMANDS, load_command
from headrace.errors import HeadraceError

ROOT = Path(__file__).parents[3]
ERRORS = Path(headrace.errors.__file__)
SOURCE = ERRORS.parent


def every_error(error: type[HeadraceError] = HeadraceError) -> Iterator[type[HeadraceError]]:
    for below in error.__subclasses__():
        yield below
        yield from every_error(below)


def test_every_error_has_a_code_and_a_page_of_its_own() -> None:
    errors = [error for error in every_error() if error.__module__.startswith("headrace.")]
    codes = [error.code for error in errors]
    assert len(set(codes)) == len(codes), sorted(code for code in codes if codes.count(code) > 1)
    for error in errors:
        assert re.fullmatch(r"[A-Z][A-Z0-9_]+", error.code), error
        assert error.__name__.endswith("Error"), error
    sections = re.findall(r"^## (\w+)\n\n\S", (ROOT / "docs" / "errors.md").read_text(), re.M)
    assert sorted(sections) == sorted(codes)


def test_no_error_is_defined_twice() -> None:
    names = re.findall(r"^class (\w+Error)\b", ERRORS.read_text(), re.M)
    assert len(set(names)) == len(names), sorted(name for name in names if names.count(name) > 1)


def test_the_page_of_errors_is_up_to_date() -> None:
    done = subprocess.run([sys.executable, str(ROOT / "tools" / "make_docs.py"), "--check"])
    assert done.returncode == 0, "run: python tools/make_docs.py"


def commands_named(text: str) -> Iterator[tuple[str, list[str]]]:
    """Verbs and options of the command lines in a text."""
    for found in re.finditer(r"\bheadrace ([a-z][a-z-]+)([^`\n]*)", text):
        if found[1] not in ("as", "import"):
            yield found[1], re.findall(r"--[a-z][a-z-]+", found[2])


def strings(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def options(command: click.Command) -> set[str]:
    found = {
        option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
    }
    if command.name == "submit":
        # It passes on the arguments of the run.
        found |= options(load_command("run"))
    if isinstance(command, click.Group):
        for below in command.commands.values():
            found |= options(below)
    return found | {"--help"}


def test_every_command_that_is_named_exists() -> None:
    for file in sorted(SOURCE.rglob("*.py")):
        for verb, given in chain.from_iterable(map(commands_named, strings(file))):
            assert verb in COMMANDS, f"{file}: headrace {verb}"
            assert set(given) <= options(load_command(verb)), f"{file}: headrace {verb} {given}"


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_the_docs_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_code_of_the_docs_exists(page: Path) -> None:
    codes = {error.code for error in every_error()}
    named = re.findall(r"^\| .* \| `([A-Z][A-Z0-9_]+)` \|", page.read_text(), re.MULTILINE)
    assert set(named) <= codes


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_that_the_docs_name_exists(page: Path) -> None:
    for verb, given in commands_named(page.read_text()):
        assert ALIASES.get(verb, verb) in COMMANDS, f"headrace {verb}"
        assert set(given) <= options(load_command(ALIASES.get(verb, verb))), f"headrace {verb} {given}"


def test_an_installed_package_explains_the_codes(tmp_path: Path) -> None:
    build = f"from hatchling.build import build_wheel; print(build_wheel({str(tmp_path)!r}))"
    done = subprocess.run([sys.executable, "-c", build], cwd=ROOT, capture_output=True, text=True, check=True)
    with zipfile.ZipFile(tmp_path / done.stdout.split()[-1]) as wheel:
        wheel.extractall(tmp_path / "installed")
    show = "import headrace.cli.main as cli; print(cli.__file__); cli.run(['explain', 'CYCLE'])"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
    shown = subprocess.run(
        [sys.executable, "-c", show], env=environment, capture_output=True, text=True, check=True
    )
    assert shown.stdout.startswith(f"{tmp_path}")
    assert "exit code 2" in shown.stdout
