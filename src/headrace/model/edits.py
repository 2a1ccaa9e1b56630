"""Edits of a text, and the way back from the edited text to the original one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Edit:
    """Characters of a text and their replacement; ``stop`` is exclusive."""

    start: int
    stop: int
    text: str


def edited(text: str, edits: Iterable[Edit]) -> str:
    """The text with all edits made; they do not overlap."""
    for edit in sorted(edits, reverse=True):
        text = text[: edit.start] + edit.text + text[edit.stop :]
    return text


def original_index(index: int, edits: Iterable[Edit]) -> int:
    """The index in the original text of a character of the edited text; in an edit, its start."""
    shift = 0
    for edit in sorted(edits):
        if index < edit.start + shift:
            break
        if index < edit.start + shift + len(edit.text):
            return edit.start
        shift += len(edit.text) - (edit.stop - edit.start)
    return index - shift
