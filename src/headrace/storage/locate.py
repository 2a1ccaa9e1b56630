"""From a path or a URI, as a user or a checkpoint gives it, to its location."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from headrace.errors import SourceLocation, StorageUnsupportedError
from headrace.model.folders import plain_path
from headrace.model.project import S3Reach, S3Settings
from headrace.storage.local import LocalFiles
from headrace.storage.location import Files, Location

if TYPE_CHECKING:
    from headrace.storage.s3.access import Buckets

S3 = "s3"
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LOCAL = LocalFiles()
_LEARNERS: list[Callable[[str], None]] = []
"""The functions `learn` of specs without settings for S3, until this process opens its first bucket. Most
pipelines use no bucket, so the client of S3 is imported only then."""
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/]*)(/.*|)", re.DOTALL)


KINDS: Mapping[str, Callable[[str], Files]] = {
    _LOCAL.scheme: lambda _: _LOCAL,
    S3: lambda bucket: _buckets().files(bucket),
}
"""Opens the files of each kind of storage, by URI scheme; called with the host of a URI."""

_REFUSED = {
    "gs": "Google Cloud Storage is not supported yet: its conditional writes are not tested",
    **dict.fromkeys(
        ("abfs", "abfss", "wasb", "wasbs", "az"),
        "Azure is not supported: no test server has the file endpoint that Spark uses there",
    ),
}


def locate(text: str | Path, folder: Path | None = None, source: SourceLocation | None = None) -> Location:
    """Return the location of a path, a ``file:`` URI, or a URI of another kind of storage. Relative paths
    begin at the folder, by default the current one."""
    if isinstance(text, Path):
        return Location(os.path.normpath(text.absolute()), _LOCAL)
    scheme = urlsplit(text).scheme
    if not scheme:
        return Location(os.path.normpath((folder or Path.cwd()) / Path(text).expanduser()), _LOCAL)
    path = plain_path(text)
    if not is_uri(path):
        return Location(os.path.normpath(path), _LOCAL)
    found = split_uri(path)
    known = _REFUSED.get(scheme)
    if found is not None and found[0] == S3 and "_" in found[1]:
        known = (
            f"the bucket's name `{found[1]}` has an underscore, which Spark's client of S3 does not accept"
        )
    elif found is not None and found[0] in KINDS:
        scheme, host, key = found
        return Location(f"{scheme}://{host}/{key}".rstrip("/"), KINDS[scheme](host))
    raise StorageUnsupportedError(
        f"the location `{text}` is not supported",
        location=source,
        facts=(
            *(() if known is None else (known,)),
            "supported: a local path, file:///PATH, and s3://BUCKET/PREFIX",
            "nothing was read or written",
        ),
        remedies=("give a local path, such as ./lake, or s3://BUCKET/PREFIX",),
        params={"storage": text, "scheme": scheme, "supported": sorted(KINDS)},
    )


def use_s3(
    settings: S3Settings, storage: str | None, learn: Callable[[str], None], source: SourceLocation | None
) -> None:
    """Use the settings of a spec for the buckets of this process, first for that of its storage. `learn` is
    called with each secret that is found."""
    found = split_uri(plain_path(storage or ""))
    bucket = found[1] if found is not None and found[0] == S3 else None
    if bucket is None and settings == S3Settings():
        _LEARNERS.append(learn)
    else:
        _buckets().use(settings, bucket, learn, source)


def reach_s3(bucket: str) -> S3Reach:
    return _buckets().files(bucket).access.reach(bucket)


def _buckets() -> Buckets:
    from headrace.storage.s3.access import BUCKETS

    while _LEARNERS:
        BUCKETS.use(S3Settings(), None, _LEARNERS.pop())
    return BUCKETS


def split_uri(text: str) -> tuple[str, str, str] | None:
    """The scheme, the host and the path of a URI that is not of this machine, in one spelling for each
    location; ``None`` for another text. As in Hadoop, ``#`` and ``?`` are characters of names."""
    found = _URI.fullmatch(text)
    if found is None or found[1].lower() == _LOCAL.scheme:
        return None
    scheme = found[1].lower()
    parts = [part for part in found[3].split("/") if part not in ("", ".")]
    is_wrong = ".." in parts or (scheme == S3 and not _BUCKET.fullmatch(found[2]))
    return None if is_wrong else (scheme, found[2], "/".join(parts))


def locate_supported(text: str, folder: Path | None = None) -> Location | None:
    """As `locate`, but ``None`` for a URI of a kind of storage that is not supported."""
    try:
        return locate(text, folder)
    except StorageUnsupportedError:
        return None


def is_uri(text: str) -> bool:
    """Return whether a text is a URI, of any scheme, and not a path."""
    return bool(urlsplit(text).scheme)


def shown_path(path: str, folder: Path) -> str:
    """A path or URI for users: relative if it is in a folder."""
    if is_uri(path):
        return path
    found = Path(path)
    return f"./{found.relative_to(folder)}" if found.is_relative_to(folder) else str(found)
