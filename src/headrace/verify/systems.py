"""The kinds of storage that the proof reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, cached_property
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from headrace.model.object_storage import S3Reach

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem


class System(Protocol):
    """One kind of storage. `pyarrow.fs` names its files without the scheme: the path begins with the host."""

    def files(self, host: str) -> FileSystem:
        """Opens the file system."""

    def table_options(self, host: str) -> Mapping[str, str]:
        """The options with which `deltalake` opens tables."""


class LocalDisks:
    def files(self, host: str) -> FileSystem:
        return self._files

    def table_options(self, host: str) -> Mapping[str, str]:
        return {}

    @cached_property
    def _files(self) -> FileSystem:
        from pyarrow.fs import LocalFileSystem

        return LocalFileSystem()


class S3Buckets:
    """Buckets of S3, read by the client of AWS for C++, which nothing else here uses."""

    def __init__(self, reach: Callable[[str], S3Reach]) -> None:
        self._reach = cache(reach)
        self.files = cache(self._open)

    def table_options(self, host: str) -> Mapping[str, str]:
        return self._reach(host).table_options

    def _open(self, host: str) -> FileSystem:
        from pyarrow.fs import S3FileSystem

        found = self._reach(host)
        url = urlsplit(found.endpoint or "")
        return S3FileSystem(
            access_key=found.access_key_id,
            secret_key=found.secret_access_key,
            session_token=found.session_token,
            region=found.region,
            scheme=url.scheme or "https",
            endpoint_override=url.netloc or None,
            force_virtual_addressing=not found.path_style,
        )


Systems = Mapping[str, System]
"""The kinds of storage by URI scheme."""

LOCAL: Systems = {"file": LocalDisks()}
