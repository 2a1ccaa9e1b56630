"""A folder of a bucket with the methods of a path, for tests that look at a storage or break it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast

import deltalake

from object_server import ObjectServer


@dataclass(frozen=True)
class BucketPath:
    """An object, or the objects whose names begin with a folder. It shares no code with Headrace's client."""

    server: ObjectServer
    bucket: str
    key: str

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}"

    def __truediv__(self, name: object) -> BucketPath:
        return BucketPath(self.server, self.bucket, f"{self.key}/{name}")

    def __lt__(self, other: BucketPath) -> bool:
        return self.key < other.key

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> BucketPath:
        return BucketPath(self.server, self.bucket, self.key.rpartition("/")[0])

    def exists(self) -> bool:
        return self._is_object() or self.is_dir()

    def is_dir(self) -> bool:
        return next(self._keys(), None) is not None

    def iterdir(self) -> Iterator[BucketPath]:
        names = {key.removeprefix(f"{self.key}/").partition("/")[0] for key in self._keys()}
        return (self / name for name in sorted(names))

    def glob(self, pattern: str) -> Iterator[BucketPath]:
        """Files and folders; `*` stands for a part of one name."""
        name, _, rest = pattern.partition("/")
        found = (one for one in self.iterdir() if fnmatchcase(one.name, name))
        return (two for one in found for two in one.glob(rest)) if rest else found

    def read_bytes(self) -> bytes:
        data: bytes = self._client.get_object(Bucket=self.bucket, Key=self.key)["Body"].read()
        return data

    def read_text(self) -> str:
        return self.read_bytes().decode()

    def write_bytes(self, data: bytes) -> None:
        self._client.put_object(Bucket=self.bucket, Key=self.key, Body=data)

    def unlink(self) -> None:
        self._client.delete_object(Bucket=self.bucket, Key=self.key)

    @property
    def _client(self) -> Any:
        return self.server.client

    def _is_object(self) -> bool:
        return self.key in self._keys(prefix=self.key)

    def _keys(self, prefix: str | None = None) -> Iterator[str]:
        pages = self._client.get_paginator("list_objects_v2")
        for page in pages.paginate(Bucket=self.bucket, Prefix=prefix or f"{self.key}/"):
            yield from (one["Key"] for one in page.get("Contents", ()))


def bucket_path(server: ObjectServer, bucket: str, key: str) -> Path:
    """A folder of a bucket in place of one of this disk, for code that uses the methods of `BucketPath`."""
    return cast(Path, BucketPath(server, bucket, key))


def open_table(path: Path) -> deltalake.DeltaTable:
    """A Delta table on this disk or in a bucket."""
    options = path.server.table_options if isinstance(path, BucketPath) else None
    return deltalake.DeltaTable(str(path), storage_options=options)
