"""The ``.env`` file beside the spec: variables that the process's environment does not have."""

from __future__ import annotations

import io
from pathlib import Path

from headrace.errors import DotenvInvalidError, SourceLocation

NAME = ".env"


def load_dotenv(folder: Path, shown: str) -> dict[str, str]:
    """The file's variables; none where there is no such file. The process's environment stays as it is.

    Values are taken as they are written, without variables of their own: a password may hold a ``$``.

    Args:
        folder: The spec's folder.
        shown: The file's path, as errors show it.

    Raises:
        DotenvInvalidError: The file cannot be read, or a line of it is not ``NAME=value``.
    """
    from dotenv.parser import parse_stream

    file = folder / NAME
    if not file.is_file():  # a virtual environment may have the name, too
        return {}
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise DotenvInvalidError(f"{shown} cannot be read: {reason}", params={"path": shown}) from error
    found: dict[str, str] = {}
    for binding in parse_stream(io.StringIO(text)):
        # A statement begins with the empty lines before it.
        leading = binding.original.string[: -len(binding.original.string.lstrip()) or None]
        line = binding.original.line + leading.count("\n")
        if binding.error or (binding.key is not None and binding.value is None):
            raise DotenvInvalidError(
                f"{shown} has a line that is not NAME=value",
                location=SourceLocation(shown, line),
                remedies=["write NAME=value, with quotes around a value that has spaces or a #"],
                params={"path": shown, "line": line},
            )
        if binding.key is not None:
            found[binding.key] = binding.value or ""
    return found
