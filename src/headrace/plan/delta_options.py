"""What a stream of a Delta table says beforehand: that the table is there, and where the stream starts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from headrace.errors import OptionInvalidError, SourceLocation, TableNotFoundError

_STARTS = ("startingVersion", "startingTimestamp")


def check_delta(options: Mapping[str, str], location: SourceLocation) -> None:
    """Look at the values that Spark would refuse only when the stream starts.

    Raises:
        OptionInvalidError: One cannot be.
    """
    chosen = {key.lower(): value.strip() for key, value in options.items()}
    version, moment = (chosen.get(name.lower()) for name in _STARTS)
    if version is not None and moment is not None:
        raise _invalid("startingVersion and startingTimestamp are both given", "leave one out", location)
    if version is not None and not (version.isdigit() or version.lower() == "latest"):
        problem = f"startingVersion is a version's number or `latest`, not {version!r}"
        raise _invalid(problem, "give a number", location)


def require_table(path: str, location: SourceLocation) -> None:
    """Make sure that a table which is read by its path is there; other systems' paths are Spark's affair.

    Raises:
        TableNotFoundError: It is not.
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
        facts=["the folder has no _delta_log" if folder.is_dir() else "there is no such folder"],
        remedies=["correct the path, or run the pipeline that makes the table"],
        params={"path": str(folder)},
    )


def _invalid(problem: str, remedy: str, location: SourceLocation) -> OptionInvalidError:
    return OptionInvalidError(
        f"a stream of a Delta table: {problem}",
        location=location,
        remedies=[remedy],
        params={"problem": problem},
    )
