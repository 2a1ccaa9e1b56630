"""Packages that only some features need."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.errors import PackageMissingError


@contextmanager
def needing(what: str, extra: str) -> Iterator[None]:
    """Wraps imports; raises `PackageMissingError` if a package of an extra is not installed. `what`: what
    needs it, such as ``the dashboard``."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("headrace"):
            raise
        raise PackageMissingError(
            f"{what} needs the Python package `{error.name}`, which is not installed",
            facts=(f"the extra headrace[{extra}] has all packages that {what} needs",),
            remedies=(f'install them:   pip install "headrace[{extra}]"',),
            params={"package": error.name},
        ) from error
