"""The page of each error code: what it means and what to do, from the docstring of its class."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.errors.base import HeadraceError


@dataclass(frozen=True)
class ErrorPage:
    """The documentation of an error code."""

    code: str
    text: str
    exit_code: int
    transient: bool  # whether the work that failed is repeated with backoff


def build_pages() -> Mapping[str, ErrorPage]:
    """The pages of all codes, in alphabetical order."""
    found = {error.code: _page(error) for error in _below(HeadraceError) if "code" in vars(error)}
    return dict(sorted(found.items()))


def _below(error: type[HeadraceError]) -> list[type[HeadraceError]]:
    return [one for child in error.__subclasses__() for one in (child, *_below(child))]


def _page(error: type[HeadraceError]) -> ErrorPage:
    text = inspect.cleandoc(error.__doc__ or "").split("\n\nArgs:")[0]
    return ErrorPage(error.code, re.sub(r"``([^`]+)``", r"`\1`", text), error.exit_code, error.transient)
