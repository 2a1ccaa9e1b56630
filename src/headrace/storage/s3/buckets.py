"""The settings of each bucket that this process uses."""

from __future__ import annotations

import threading
from collections.abc import Callable

from headrace.errors import SourceLocation, SpecInvalidError
from headrace.model.object_storage import S3Settings
from headrace.storage.s3.access import S3Access
from headrace.storage.s3.files import S3Files


class Buckets:
    """Gives the files of each bucket. A bucket has the same settings in the whole process: two clients with
    different endpoints would be two storages under one name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._accesses: dict[S3Settings, S3Access] = {}
        self._loaded: list[S3Settings] = []
        self._files: dict[str, S3Files] = {}

    def use(
        self,
        settings: S3Settings,
        bucket: str | None,
        learn: Callable[[str], None],
        location: SourceLocation | None = None,
    ) -> None:
        """Use the settings of a spec for the bucket of its storage, if it has one, and for buckets that no
        other spec uses. `learn` is called with each secret that is found."""
        with self._lock:
            if settings not in self._loaded and settings != S3Settings():
                self._loaded.append(settings)
            self._access(settings).tell(learn)
            if bucket is None:
                return
            held = self._files.get(bucket)
            if held is None:
                self._files[bucket] = S3Files(bucket, self._access(settings))
            elif held.access.settings != settings:
                raise _differ(f"the bucket `{bucket}` has other settings in this process", bucket, location)

    def files(self, bucket: str) -> S3Files:
        with self._lock:
            if bucket not in self._files:
                if len(self._loaded) > 1:
                    summary = f"two specs of this process have different settings for the bucket `{bucket}`"
                    raise _differ(summary, bucket, None)
                settings = self._loaded[0] if self._loaded else S3Settings()
                self._files[bucket] = S3Files(bucket, self._access(settings))
            return self._files[bucket]

    def access(self, settings: S3Settings) -> S3Access:
        with self._lock:
            return self._access(settings)

    def _access(self, settings: S3Settings) -> S3Access:
        return self._accesses.setdefault(settings, S3Access(settings))


def _differ(summary: str, bucket: str, location: SourceLocation | None) -> SpecInvalidError:
    return SpecInvalidError(
        summary,
        location=location,
        facts=("nothing was read or written",),
        remedies=("give both specs the same `object_storage`, or use a process for each of them",),
        params={"key": "object_storage.s3", "bucket": bucket},
    )


BUCKETS = Buckets()
"""The buckets of this process: `locate` gets a URI, and no settings."""
