"""The settings of each bucket that this process uses, and its files."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from headrace.errors import SourceLocation, SpecInvalidError
from headrace.model.project import S3Settings
from headrace.storage.objects import ObjectFiles
from headrace.storage.s3.access import S3Access

if TYPE_CHECKING:
    from obstore.store import S3Config, S3Credential, S3Store


SCHEME = "s3"

_RETRIES = 6
_RETRY_TIMEOUT = timedelta(seconds=30)
"""The run repeats its work with longer pauses; a command shows the error."""


class S3Files(ObjectFiles):
    def __init__(self, bucket: str, access: S3Access) -> None:
        super().__init__(SCHEME, self._open_bucket)
        self.bucket = bucket
        self.access = access

    @property
    def table_options(self) -> Mapping[str, str]:
        return self.access.reach(self.bucket).table_options

    def _open_bucket(self, bucket: str) -> S3Store:
        from obstore.store import S3Store

        # A problem with the credentials shows here as what it is.
        reach = self.access.reach(bucket)
        # For others, the client would take the value of an environment variable.
        config: S3Config = {"skip_signature": False}
        if reach.bucket_endpoint is not None:
            config["aws_endpoint_url_s3"] = reach.bucket_endpoint
        return S3Store(
            bucket,
            region=reach.region,
            virtual_hosted_style_request=not reach.path_style,
            credential_provider=self._give_credentials,
            client_options={"allow_http": reach.allows_http},
            retry_config={"max_retries": _RETRIES, "retry_timeout": _RETRY_TIMEOUT},
            config=config,
        )

    def _give_credentials(self) -> S3Credential:
        found = self.access.credentials()
        return {
            "access_key_id": found.access_key_id,
            "secret_access_key": found.secret_access_key,
            "token": found.session_token,
            "expires_at": found.expires,
        }


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
