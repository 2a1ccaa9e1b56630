"""Credentials, endpoint and region of S3, found as AWS's own tools find them; the settings of buckets."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from headrace.errors import PackageMissingError, SourceLocation, SpecInvalidError, StorageAccessError
from headrace.model.project import ENDPOINT, S3Reach, S3Settings
from headrace.storage.objects import ObjectFiles

if TYPE_CHECKING:
    from botocore.session import Session
    from obstore.store import S3Config, S3Credential, S3Store


INSTALL = "pip install 'headrace[s3]'"

_DEFAULT_REGION = "us-east-1"
_SESSION_NAME = "headrace"
_RENEWED = timedelta(minutes=5)
"""Credentials that expire at a time that is not known are asked for again after this time."""


@dataclass(frozen=True, kw_only=True)
class Credentials:
    access_key_id: str = field(repr=False)
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)
    expires: datetime | None = None  # in UTC; ``None`` for credentials that do not expire


class S3Access:
    """Finds the credentials of S3 once, renews those that expire, and knows the endpoint of each bucket."""

    def __init__(self, settings: S3Settings) -> None:
        self.settings = settings
        self._learners: list[Callable[[str], None]] = []
        self._told: set[str] = set()
        self._lock = threading.Lock()

    def tell(self, learn: Callable[[str], None]) -> None:
        """Call a function with each secret that is found, so that it can be redacted."""
        with self._lock:
            self._learners.append(learn)
            for secret in self._told:
                learn(secret)

    @cached_property
    def region(self) -> str:
        # botocore reads only AWS_DEFAULT_REGION, other clients read AWS_REGION.
        found = self.settings.region or os.environ.get("AWS_REGION")
        return str(found or self._session.get_config_variable("region") or _DEFAULT_REGION)

    @cached_property
    def endpoint(self) -> str | None:
        """The URL of the store without the bucket; ``None`` for AWS."""
        known = os.environ
        found = self.settings.endpoint or known.get("AWS_ENDPOINT_URL_S3") or known.get("AWS_ENDPOINT_URL")
        found = found or self._session.get_scoped_config().get("endpoint_url")
        if not found:
            return None
        if not ENDPOINT.fullmatch(found):
            remedy = "correct it, such as:   export AWS_ENDPOINT_URL_S3=https://host:9000"
            raise _wrong_endpoint(found, "is not a URL, such as https://host:9000", remedy)
        host = urlsplit(found).hostname or ""
        if self.settings.path_style is False and (":" in host or host.replace(".", "").isdigit()):
            problem = "is an address, which cannot have the bucket in front of it"
            remedy = "have the bucket in the path:   object_storage: {s3: {path_style: true}}"
            raise _wrong_endpoint(found, problem, remedy)
        return str(found).rstrip("/")

    @property
    def path_style(self) -> bool:
        """Whether the bucket is in the path of a URL: by default for stores other than AWS."""
        given = self.settings.path_style
        return self.endpoint is not None if given is None else given

    @property
    def allows_http(self) -> bool:
        return self.endpoint is not None and self.endpoint.startswith("http:")

    def reach(self, bucket: str) -> S3Reach:
        found = self.credentials()
        return S3Reach(
            bucket=bucket,
            region=self.region,
            endpoint=self.endpoint,
            path_style=self.path_style,
            access_key_id=found.access_key_id,
            secret_access_key=found.secret_access_key,
            session_token=found.session_token,
        )

    def credentials(self) -> Credentials:
        """The credentials of this moment; those that expire soon are renewed first.

        Raises:
            StorageAccessError: No credentials were found, or they cannot be renewed.
        """
        from botocore.exceptions import BotoCoreError, ClientError

        with self._lock:
            try:
                source = self._source
                found = source.get_frozen_credentials()
            except (BotoCoreError, ClientError) as error:
                reason = " ".join(str(error).split())
                raise self._failed(f"the credentials of S3 cannot be read: {reason}") from error
            for secret in (found.secret_key, found.token):
                if secret and secret not in self._told:
                    self._told.add(secret)
                    for learn in self._learners:
                        learn(secret)
            if not found.token and os.environ.get("AWS_SESSION_TOKEN"):
                # `deltalake` would send it with these keys.
                raise self._failed("AWS_SESSION_TOKEN is set, but the keys come from elsewhere: unset it")
            # Under the lock: another thread could renew them in between.
            expires = _expires(source)
        return Credentials(
            access_key_id=found.access_key,
            secret_access_key=found.secret_key,
            session_token=found.token,
            expires=expires,
        )

    @cached_property
    def _session(self) -> Session:
        try:
            import botocore.session
            import obstore  # noqa: F401 - both are needed
        except ModuleNotFoundError as error:
            raise PackageMissingError(
                f"object storage needs the Python package `{error.name}`, which is not installed",
                remedies=[INSTALL],
                params={"package": error.name},
            ) from error
        from botocore.exceptions import BotoCoreError, ProfileNotFound

        # It logs the stack trace of each failure, which is raised, too.
        logging.getLogger("botocore.credentials").setLevel(logging.ERROR)
        session = botocore.session.Session(profile=self.settings.profile)
        try:
            session.get_scoped_config()
        except ProfileNotFound as error:
            raise self._failed(f"AWS's files have no profile `{session.profile}`") from error
        except BotoCoreError as error:
            raise self._failed(f"AWS's files cannot be read: {error}") from error
        return session

    @cached_property
    def _source(self) -> Any:
        """The credentials of botocore, which renew themselves."""
        from botocore.credentials import (
            AssumeRoleCredentialFetcher,
            Credentials as FixedCredentials,
            DeferredRefreshableCredentials,
        )

        given = self.settings
        if given.access_key_id and given.secret_access_key:
            found = FixedCredentials(
                given.access_key_id, given.secret_access_key, given.session_token, method="spec"
            )
        else:
            found = self._session.get_credentials()
        if found is None:
            raise self._failed("no credentials of S3 were found")
        if given.role_arn is None:
            return found
        fetcher = AssumeRoleCredentialFetcher(
            partial(self._session.create_client, region_name=self.region),
            found,
            given.role_arn,
            extra_args={"RoleSessionName": _SESSION_NAME},
        )
        return DeferredRefreshableCredentials(method="assume-role", refresh_using=fetcher.fetch_credentials)

    def _failed(self, summary: str) -> StorageAccessError:
        role = self.settings.role_arn
        return StorageAccessError(
            summary,
            facts=(
                "looked for, in this order: `object_storage: {s3: {..}}` of the spec, the environment "
                "(AWS_ACCESS_KEY_ID), the profile, web identity, container, instance",
            ),
            remedies=(
                *(() if role is None else (f"let the credentials assume {role} (sts:AssumeRole)",)),
                "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
                "or name a profile in the spec:   object_storage: {s3: {profile: NAME}}",
            ),
            params={"profile": self.settings.profile, "role_arn": self.settings.role_arn},
        )


def _wrong_endpoint(endpoint: str, problem: str, remedy: str) -> SpecInvalidError:
    shown = endpoint.rpartition("@")[2]  # without a password
    return SpecInvalidError(
        f"the endpoint of S3 `{shown}` {problem}",
        facts=(
            "it is from `endpoint` of `object_storage` in headrace.yml, AWS_ENDPOINT_URL_S3, "
            "AWS_ENDPOINT_URL or the profile",
            "nothing was read or written",
        ),
        remedies=(remedy,),
        params={"endpoint": shown},
    )


def _expires(source: Any) -> datetime | None:
    from botocore.credentials import RefreshableCredentials

    if not isinstance(source, RefreshableCredentials):
        return None
    known: datetime | None = getattr(source, "_expiry_time", None)
    return datetime.now(UTC) + _RENEWED if known is None else known.astimezone(UTC)


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
