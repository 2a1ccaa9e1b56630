"""The files of one bucket of S3."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

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
