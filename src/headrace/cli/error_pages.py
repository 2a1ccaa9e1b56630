"""The pages of error codes: what `headrace explain` prints, the sections of docs/errors.md."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import headrace
from headrace.errors import HeadraceError

_PACKAGE = Path(headrace.__file__).parent
_TRAITS = re.compile(r"\n\*exit code .*\*\n*\Z")
"""The last line of a section, which is made from the class of the error."""


@dataclass(frozen=True)
class ErrorPage:
    code: str
    text: str
    exit_code: int
    transient: bool  # whether the work that failed is repeated with backoff


def build_pages() -> dict[str, ErrorPage]:
    """The pages of all codes, in alphabetical order: the sections of errors.md."""
    sections = _page_file().read_text(encoding="utf-8").split("\n## ")[1:]
    texts = {
        code: _TRAITS.sub("", text).strip() for code, _, text in (one.partition("\n") for one in sections)
    }
    return {
        error.code: ErrorPage(error.code, texts[error.code], error.exit_code, error.transient)
        for error in sorted(_errors_below(HeadraceError), key=lambda error: error.code)
    }


def _page_file() -> Path:
    """errors.md: in an installed package with its modules, in a checkout with the other pages."""
    installed = _PACKAGE / "errors.md"
    return installed if installed.is_file() else _PACKAGE.parents[1] / "docs" / "errors.md"


def _errors_below(error: type[HeadraceError]) -> list[type[HeadraceError]]:
    return [one for child in error.__subclasses__() for one in (child, *_errors_below(child))]
