"""Write `docs/errors.md` from the error tree: ``python tools/make_docs.py`` (``--check`` compares only)."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from headrace.errors import HeadraceError

PAGE = Path(__file__).parents[1] / "docs" / "errors.md"

HEAD = """\
# Errors

Every error that Headrace raises on purpose has a code, one sentence, the place, what was and was not
done, and the remedy. `--json` gives the same fields, and `--debug` the trace. The code never changes
its meaning. This page is made from the source by `make docs`.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | the work failed, or is not proven |
| 2 | the pipeline or the command line is wrong |
| 3 | a grade of proof that was demanded cannot be judged |
| 130, 143 | stopped by a signal |

"""


def main() -> int:
    """Write the page, or compare it."""
    page = build_page()
    if "--check" in sys.argv[1:]:
        return 0 if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == page else 1
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page, encoding="utf-8")
    return 0


def build_page() -> str:
    """The page: one section for each code, in the order of the alphabet."""
    errors = sorted(_codes(HeadraceError), key=lambda error: error.code)
    listed = "\n".join(f"- [{error.code}](#{error.code.lower()})" for error in errors)
    return HEAD + listed + "\n" + "".join(_section(error) for error in errors)


def _codes(error: type[HeadraceError]) -> Iterator[type[HeadraceError]]:
    """The errors that have a code of their own; the inner nodes of the tree are among them."""
    for below in error.__subclasses__():
        if "code" in vars(below):
            yield below
        yield from _codes(below)


def _section(error: type[HeadraceError]) -> str:
    traits = [f"exit code {error.exit_code}"]
    if error.transient:
        traits.append("repeated with backoff")
    return f"\n## {error.code}\n\n{_text(error)}\n\n*{', '.join(traits)}*\n"


def _text(error: type[HeadraceError]) -> str:
    """The docstring as Markdown, without its sections for programmers."""
    text = inspect.cleandoc(error.__doc__ or "").split("\n\nArgs:")[0]
    return re.sub(r"``([^`]+)``", r"`\1`", text)


if __name__ == "__main__":
    sys.exit(main())
