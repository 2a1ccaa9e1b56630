"""What a new kind of source touches: a folder of its own, and one line of the registry."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import headrace
from headrace.sources import registry

ROOT = Path(headrace.__file__).parent
KINDS = {"kafka", "kinesis", "delta", "files", "other"}
ATTRIBUTES = {"kind", "kinds", "format", "formats", "provider"}
"""Names of values that say of which kind a source is."""

OWN = ("sources/kafka/", "sources/kinesis/", "sources/delta/", "sources/files/", "sources/other/")
APART = ("verify/",)
"""The proof shares no code with what it judges, so it knows the kinds by itself."""


def modules() -> Iterator[tuple[str, ast.Module]]:
    """The modules outside of the kinds' own folders, by path."""
    for file in sorted(ROOT.rglob("*.py")):
        name = str(file.relative_to(ROOT))
        if not name.startswith((*OWN, *APART)):
            yield name, ast.parse(file.read_text())


def compares_kind(node: ast.AST) -> bool:
    """Whether an expression compares a kind or a format with the name of one."""
    if not isinstance(node, ast.Compare):
        return False
    sides = [node.left, *node.comparators]
    texts = {
        constant.value
        for side in sides
        for constant in ast.walk(side)
        if isinstance(constant, ast.Constant) and isinstance(constant.value, str)
    }
    return any(map(_is_named, sides)) and bool(texts & KINDS)


def _is_named(node: ast.expr) -> bool:
    """Whether a value has the name of a kind or a format, such as ``format`` in ``format.lower()``."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        node = node.func.value
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name in ATTRIBUTES


def matches_kind(node: ast.AST) -> bool:
    """Whether a ``match`` over a kind or a format has the name of one as a case."""
    if not isinstance(node, ast.Match) or not _is_named(node.subject):
        return False
    values = (case.pattern.value for case in node.cases if isinstance(case.pattern, ast.MatchValue))
    return any(isinstance(value, ast.Constant) and value.value in KINDS for value in values)


def test_nothing_outside_of_a_kind_asks_for_its_name() -> None:
    found = [
        f"{name}:{node.lineno}"
        for name, module in modules()
        for node in ast.walk(module)
        if compares_kind(node) or matches_kind(node)
    ]
    assert found == [], "ask the kind of the source instead: sources/registry.py"


def test_no_module_imports_the_class_of_a_kind() -> None:
    classes = {type(kind).__name__ for kind in registry.KINDS}
    classes |= {kind.source.__name__ for kind in registry.KINDS}
    found = {
        name
        for name, module in modules()
        for node in ast.walk(module)
        if isinstance(node, ast.ImportFrom) and classes & {alias.name for alias in node.names}
    }
    assert found == set()


def test_every_kind_is_a_folder_and_a_line_of_the_registry() -> None:
    folders = {path.parent.name for path in (ROOT / "sources").glob("*/__init__.py")}
    assert folders == {kind.name for kind in registry.KINDS} == KINDS


def test_the_check_finds_tests_of_kinds() -> None:
    for text in ('source.kind == "kafka"', 'request.format.lower() != "delta"', 'kinds == {"files"}'):
        assert compares_kind(ast.parse(text, mode="eval").body), text
    assert not compares_kind(ast.parse('change.kind == "keep"', mode="eval").body)


def test_the_rooms_above_import_without_a_kind(tmp_path: Path) -> None:
    """No room above the kinds needs one of them, and no import is hidden in a function."""
    copy = tmp_path / "headrace"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.rmtree(copy / "sources" / "kafka")
    lines = (copy / "sources" / "registry.py").read_text().splitlines(keepends=True)
    left = [line for line in lines if "kafka" not in line]
    assert len(lines) - len(left) == 1
    (copy / "sources" / "registry.py").write_text("".join(left))
    rooms = [f"headrace.{name.removesuffix('.py').replace('/', '.')}" for name in above_kinds(copy)]
    code = f"import importlib, headrace; assert {str(tmp_path)!r} in headrace.__file__\n"
    code += f"for name in {rooms!r}: importlib.import_module(name)"
    run = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True
    )
    assert run.returncode == 0, run.stderr.decode()
    named = [name for name in above_kinds(copy) if b"kafka" in (copy / name).read_bytes().lower()]
    assert named == []


def above_kinds(root: Path) -> list[str]:
    """The modules that work with all kinds of sources."""
    rooms = ("run", "plan", "contracts", "state", "observe", "maintain")
    files = [file for room in rooms for file in (root / room).rglob("*.py")]
    return sorted(str(file.relative_to(root)) for file in (*files, *(root / "sources").glob("*.py")))
