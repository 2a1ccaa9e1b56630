"""From a path or a URI, as a user or a checkpoint gives it, to its location."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from headrace.errors import SourceLocation, StorageUnsupportedError
from headrace.model.folders import plain_path
from headrace.storage.local import LocalFiles
from headrace.storage.location import Files, Location

_LOCAL = LocalFiles()
KINDS: Mapping[str, Files] = {_LOCAL.scheme: _LOCAL}
"""The kinds of storage, by URI scheme."""


def locate(text: str | Path, folder: Path | None = None, source: SourceLocation | None = None) -> Location:
    """Return the location of a path, a ``file:`` URI, or a URI of another kind of storage. Relative paths
    begin at the folder, by default the current one."""
    if isinstance(text, Path):
        return Location(os.path.normpath(text.absolute()), _LOCAL)
    scheme = urlsplit(text).scheme
    if not scheme:
        return Location(os.path.normpath((folder or Path.cwd()) / Path(text).expanduser()), _LOCAL)
    if (path := plain_path(text)) != text:
        return Location(os.path.normpath(path), _LOCAL)
    if scheme != _LOCAL.scheme and (kind := KINDS.get(scheme)) is not None:
        return Location(text.rstrip("/"), kind)
    raise StorageUnsupportedError(
        f"the location `{text}` is not supported",
        location=source,
        facts=("supported: a local path, and file:///PATH", "nothing was read or written"),
        remedies=("give a local path, such as ./lake",),
        params={"storage": text, "scheme": scheme, "supported": sorted(KINDS)},
    )


def locate_supported(text: str, folder: Path | None = None) -> Location | None:
    """As `locate`, but ``None`` for a URI of a kind of storage that is not supported."""
    try:
        return locate(text, folder)
    except StorageUnsupportedError:
        return None


def is_uri(text: str) -> bool:
    """Return whether a text is a URI, of any scheme, and not a path."""
    return bool(urlsplit(text).scheme)
