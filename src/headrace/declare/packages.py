"""Packages that a pipeline installs on its platform: with ``%pip`` cells, or as dependencies of a bundle."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from headrace.errors import SourceLocation
from headrace.model.project import ProjectSettings, code_language
from headrace.syntax.ipynb import InvalidNotebookError, cell_file, parse_notebook, python_cells
from headrace.syntax.locations import display_path


def find_packages(files: Iterable[Path], settings: ProjectSettings) -> dict[str, SourceLocation]:
    """The arguments of each installation, such as ``faker==30.1`` or ``-r requirements.txt``."""
    found = dict(settings.packages)
    for file in files:
        if file.is_file():
            for location, given in _installed(file, display_path(file, settings.root)):
                found.setdefault(given, location)
    return found


def _installed(file: Path, shown: str) -> Iterator[tuple[SourceLocation, str]]:
    text = file.read_text(encoding="utf-8", errors="replace")
    match code_language(file):
        case "python":
            for cell in python_cells(text)[1]:
                command, _, given = cell.argument.partition(" ")
                if cell.magic == "pip" and command == "install" and given.strip():
                    yield SourceLocation(shown, cell.line), given.strip()
        case "notebook":
            with suppress(InvalidNotebookError):
                for one in parse_notebook(text):
                    for line, command in one.skipped:
                        if found := re.fullmatch(r"[%!]pip\s+install\s+(.+)", command):
                            yield SourceLocation(cell_file(shown, one.number), line), found[1].strip()
        case _:
            return


def missing_package(module: str, packages: Mapping[str, SourceLocation]) -> tuple[list[str], list[str]]:
    """The facts and remedies for a module that cannot be imported."""
    top = module.partition(".")[0]
    named = {text: at for text, at in packages.items() if any(_provides(one, top) for one in _names(text))}
    chosen = named or dict(packages)
    facts = [f"{at} installs {text}" for text, at in chosen.items()]
    remedies = [f"install it beside Headrace:   pip install {text}" for text in chosen]
    return facts, remedies or [f"install the package of `{top}`, or put {top}.py beside the spec"]


def _names(text: str) -> Iterator[str]:
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    for word in words:
        if found := re.match(r"[A-Za-z0-9][\w.-]*", word):
            yield found[0]


def _provides(package: str, module: str) -> bool:
    """Whether a package can have a module, by their names: `python-dateutil` has `dateutil`."""
    plain = re.sub(r"[-_.]+", "", package.lower())
    wanted = module.lower().replace("_", "")
    return wanted == plain or plain in (f"python{wanted}", f"py{wanted}", f"{wanted}python")
