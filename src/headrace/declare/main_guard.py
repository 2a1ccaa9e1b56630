"""The condition ``__name__ == "__main__"`` in a pipeline's files.

Databricks runs notebooks and the files of its pipelines as the main program. In these the condition holds
while Headrace loads them; ``__name__`` itself stays the name of the module, by which functions reach workers.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import CodeType

_PIPELINES = frozenset({"dlt", "databricks.pipelines", "pyspark.pipelines"})
"""The modules that are imported by files which Databricks runs as main programs."""


def compile_file(code: bytes | str, filename: str, *, is_notebook: bool = False) -> CodeType:
    """The code of a file, or of a cell of a notebook, as its platform would run it."""
    text = code.encode() if isinstance(code, str) else code
    if b"__main__" not in text:
        return compile(code, filename, "exec", dont_inherit=True)
    tree = ast.parse(code, filename)
    if is_notebook or _is_for_pipelines(tree):
        tree = ast.fix_missing_locations(_Holds().visit(tree))
    return compile(tree, filename, "exec", dont_inherit=True)


def find_guard(code: bytes | str) -> int | None:
    """The line of the first ``if __name__ == "__main__"`` that does not hold; ``None`` if there is none."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError):
        return None
    if _is_for_pipelines(tree):
        return None
    return next((node.lineno for node in ast.walk(tree) if isinstance(node, ast.If) and _guards(node)), None)


def _guards(node: ast.If) -> bool:
    return any(_is_guard(one) for one in ast.walk(node.test))


def _is_guard(node: ast.AST) -> bool:
    match node:
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
            pair = (left, right) if isinstance(left, ast.Name) else (right, left)
            match pair:
                case ast.Name(id="__name__"), ast.Constant(value="__main__"):
                    return True
    return False


class _Holds(ast.NodeTransformer):
    """Replaces the condition by its value."""

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        return ast.copy_location(ast.Constant(True), node) if _is_guard(node) else node


def _is_for_pipelines(tree: ast.AST) -> bool:
    return any(name in _PIPELINES for node in ast.walk(tree) for name in _imported(node))


def _imported(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            yield from (one.name for one in names)
        case ast.ImportFrom(module=str(module), names=names, level=0):
            yield module
            yield from (f"{module}.{one.name}" for one in names)
