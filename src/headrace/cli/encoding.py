"""Output on terminals that cannot show every character: missing characters are replaced."""

from __future__ import annotations

import codecs
import json
from typing import IO

_PLAIN = {
    "✓": "ok", "✗": "FAIL", "⚡": "!", "→": "->", "≠": "!=", "×": "x", "…": "...", "·": "-", "–": "-",  # noqa: RUF001
    "─": "-", "│": "|", "├": "+", "└": "+", "┬": "+", "▶": ">",
}  # fmt: skip
"""The characters of our own texts. The characters of users' data become escapes."""


def replace_unencodable(stream: IO[str], *, is_json: bool) -> None:
    """Make a stream write a replacement for each character that its encoding lacks.

    Args:
        is_json: Whether JSON is written, whose escapes lose nothing.
    """
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors=_JSON if is_json else _TEXT)


def _as_text(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    lacking = error.object[error.start : error.end]
    plain = "".join(_PLAIN.get(one) or one.encode("ascii", "backslashreplace").decode() for one in lacking)
    return plain, error.end


def _as_json(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


_TEXT, _JSON = "headrace.text", "headrace.json"
codecs.register_error(_TEXT, _as_text)
codecs.register_error(_JSON, _as_json)
