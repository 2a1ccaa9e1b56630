"""Ranges as a person reads them."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.model.texts import counted

_SHOWN = 20


def spans_text(spans: Iterable[tuple[int, int]], shown: int = _SHOWN) -> str:
    """``offset 7``, ``offsets 7 to 9``, ``offsets 7, 10 to 12 and 3 more ranges``; ends are exclusive."""
    found = [(int(low), int(high)) for low, high in spans]
    words = [f"{low}" if high == low + 1 else f"{low} to {high - 1}" for low, high in found[:shown]]
    noun = "offset" if len(found) == 1 and found[0][1] == found[0][0] + 1 else "offsets"
    more = len(found) - shown
    if more > 0:
        return f"{noun} {', '.join(words)} and {counted(more, 'more range')}"
    return f"{noun} {', '.join(words)}"
