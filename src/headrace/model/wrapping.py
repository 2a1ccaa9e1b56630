"""Lines of text that fit a screen: no word and no command is broken."""

from __future__ import annotations

import re

GLUE = "\u00a0"
"""A space at which no line is broken."""

_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_COMMAND = re.compile(r"`[^`]*`|(?:(?<=   )|^)(?:headrace|jq|export|pip|python|duckdb) .*$")
"""Commands, which a person copies: a part in backquotes, or the end of a line."""


def wrap(text: str, width: int | None, first: str = "", rest: str = "") -> list[str]:
    """Break a line into lines.

    Args:
        width: Characters of a line; a longer word or command keeps its length. `None` breaks nothing.
    """
    glued = _COMMAND.sub(lambda found: found[0].replace(" ", GLUE), text)
    lines, line = list[str](), first
    for gap, word in re.findall(r"( *)([^ ]+)", glued):
        is_empty = line in (first, rest)
        if width is not None and not is_empty and _length(line) + len(gap) + _length(word) > width:
            lines.append(line)
            line, gap = rest, ""
        line += gap + word
    return [one.replace(GLUE, " ") for one in (*lines, line)]


def _length(text: str) -> int:
    return len(_STYLE.sub("", text))
