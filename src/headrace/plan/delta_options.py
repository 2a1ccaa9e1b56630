"""Checks of Delta readers before Spark gets them: the table exists, and the start is valid."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from headrace.errors import OptionInvalidError, SourceLocation, TableNotFoundError

_STARTS = ("startingVersion", "startingTimestamp")


def check_delta(options: Mapping[str, str], location: SourceLocation) -> None:
    """Check the values that Spark would refuse only when the stream starts.

    Raises:
        OptionInvalidError: A value is invalid.
    """
    chosen = {key.lower(): value.strip() for key, value in options.items()}
    version, moment = (chosen.get(name.lower()) for name in _STARTS)
    if version is not None and moment is not None:
        raise _invalid("startingVersion and startingTimestamp are both set", "remove one", location)
    if version is not None and not (version.isdigit() or version.lower() == "latest"):
        problem = f"startingVersion must be a table version or `latest`, not {version!r}"
        raise _invalid(problem, "write a number", location)


def require_table(path: str, location: SourceLocation) -> None:
    """Check that a table with a local path exists; other paths are left to Spark.

    Raises:
        TableNotFoundError: It does not exist.
    """
    parts = urlsplit(path)
    if parts.scheme not in ("", "file"):
        return
    folder = Path(unquote(parts.path) if parts.scheme else path).absolute()
    if (folder / "_delta_log").is_dir():
        return
    raise TableNotFoundError(
        f"there is no Delta table at {folder}",
        location=location,
        facts=["the folder has no _delta_log" if folder.is_dir() else "the folder does not exist"],
        remedies=["correct the path, or run the pipeline that creates the table"],
        params={"path": str(folder)},
    )


def _invalid(problem: str, remedy: str, location: SourceLocation) -> OptionInvalidError:
    return OptionInvalidError(
        f"a stream of a Delta table: {problem}",
        location=location,
        remedies=[remedy],
        params={"problem": problem},
    )
