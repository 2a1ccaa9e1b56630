"""Remedies as the user can type them: with the options that name the pipeline."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from headrace.errors import HeadraceError, PlanFailedError

_WITHOUT_PIPELINE = {"completion", "demo", "engine", "explain", "init"}


def named_options(given: Mapping[str, Path | str | None]) -> str:
    """The options that a user has typed to name a pipeline, as they are typed in the same folder."""
    words = []
    for name, value in given.items():
        if isinstance(value, Path) and value.is_relative_to(Path.cwd()):
            value = Path(os.path.relpath(value))
        if value is not None:
            words += [f"--{name}", shlex.quote(str(value))]
    return " ".join(words)


def locate_remedies(error: HeadraceError, options: str) -> HeadraceError:
    """The error with these options in each command of its remedies: without them, the command would act on
    another pipeline, or on the shared broker."""
    if not options:
        return error
    located = error.with_(remedies=[_locate(one, options) for one in error.remedies])
    if isinstance(located, PlanFailedError):
        return located.with_errors(locate_remedies(one, options) for one in located.errors)
    return located


def _locate(remedy: str, options: str) -> str:
    _, _, command = remedy.rpartition(":   ")
    words = command.split()
    is_command = words[:1] == ["headrace"] and len(words) > 1 and words[1] not in _WITHOUT_PIPELINE
    is_plain = not set(command) & set("|;&`()")
    if not (is_command and is_plain) or any(word.startswith(("--project", "--spec")) for word in words):
        return remedy
    return f"{remedy} {options}"
