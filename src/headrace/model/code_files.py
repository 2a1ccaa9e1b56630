"""The files of a pipeline."""

from __future__ import annotations

from pathlib import PurePath
from typing import Literal


def code_language(file: PurePath) -> Literal["python", "sql"] | None:
    """The language of a file by the end of its name, in any letter case; ``None`` for other files.

    Example:
        >>> code_language(PurePath("orders.SQL"))
        'sql'
    """
    match file.suffix.lower():
        case ".py":
            return "python"
        case ".sql":
            return "sql"
        case _:
            return None
