"""The connection to a stream of Kinesis: its settings, its client, and the meaning of the client's errors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, Final, Self

from headrace import errors
from headrace.errors import HeadraceError, PackageMissingError

INSTALL: Final = "pip install 'headrace[kinesis]'"

_SESSION_NAME = "headrace"
_ATTEMPTS = 8
_CONNECT_S, _READ_S = 5.0, 30.0
_REFUSED = frozenset(
    {
        *("AccessDenied", "AccessDeniedException", "ExpiredToken", "ExpiredTokenException", "OptInRequired"),
        *("InvalidClientTokenId", "InvalidSignatureException", "SignatureDoesNotMatch"),
        *("MissingAuthenticationToken", "MissingAuthenticationTokenException", "UnrecognizedClientException"),
        *("KMSAccessDeniedException", "KMSDisabledException", "KMSOptInRequired", "ProfileNotFound"),
        *("CredentialRetrievalError", "NoCredentialsError", "PartialCredentialsError"),
    }
)
"""The errors of AWS, and of boto3 where it finds no credentials."""
_MARK = "HEADRACE_KINESIS "
_MARKED = re.compile(re.escape(_MARK) + r"(\{.*?\})(?:\s*$|\s*\n)", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class StreamConnection:
    """How a stream is reached. AWS's environment variables and files give the values that are missing."""

    stream: str  # the name
    arn: str | None = None  # the ARN, for a stream of another account
    region: str | None = None
    endpoint: str | None = None  # the URL of a server in place of AWS
    profile: str | None = None
    role_arn: str | None = None
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """The connection in the options of a data source, whose names have any letter case."""
        lowered = {name.lower(): value for name, value in options.items()}
        return cls(**{one.name: lowered.get(_option(one.name).lower()) for one in fields(cls)})  # type: ignore[arg-type]

    def to_options(self) -> dict[str, str]:
        found = {_option(one.name): getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in found.items() if value is not None}

    @property
    def names(self) -> dict[str, str]:
        """The parameter that names the stream in requests."""
        return {"StreamName": self.stream} if self.arn is None else {"StreamARN": self.arn}

    @property
    def place(self) -> str:
        """The region and the endpoint of the stream, for messages."""
        region = self.region or "the default region"
        return region if self.endpoint is None else f"{region} at {self.endpoint.rpartition('@')[2]}"

    def open(self, *, attempts: int = _ATTEMPTS, timeout_s: float = _READ_S) -> Any:
        """A client of boto3. It repeats requests that are throttled, and slows down."""
        try:
            import boto3
            from botocore.config import Config
            from botocore.session import Session
        except ModuleNotFoundError as error:
            raise PackageMissingError(
                f"Kinesis needs the Python package `{error.name}`, which is not installed",
                remedies=[INSTALL],
                params={"package": error.name},
            ) from error
        with self.explained():
            session = Session(profile=self.profile)
            if self.access_key_id and self.secret_access_key:
                session.set_credentials(self.access_key_id, self.secret_access_key, self.session_token)
            if self.role_arn is not None:
                session._credentials = self._assume_role(session)
            return boto3.Session(botocore_session=session).client(
                "kinesis",
                region_name=self.region,
                endpoint_url=self.endpoint,
                config=Config(
                    retries={"mode": "adaptive", "total_max_attempts": attempts},
                    connect_timeout=min(_CONNECT_S, timeout_s),
                    read_timeout=timeout_s,
                    max_pool_connections=32,
                ),
            )

    def _assume_role(self, session: Any) -> Any:
        from functools import partial

        from botocore.credentials import AssumeRoleCredentialFetcher, DeferredRefreshableCredentials

        # The server at an endpoint also gives the tokens of the role.
        create = partial(session.create_client, region_name=self.region, endpoint_url=self.endpoint)
        fetcher = AssumeRoleCredentialFetcher(
            create, session.get_credentials(), self.role_arn, extra_args={"RoleSessionName": _SESSION_NAME}
        )
        return DeferredRefreshableCredentials(method="assume-role", refresh_using=fetcher.fetch_credentials)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Raise the errors of the client within this context as errors with a code."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            yield
        except (BotoCoreError, ClientError) as error:
            raise self._explain(error) from error

    def _explain(self, error: Exception) -> HeadraceError:
        response: Any = getattr(error, "response", None) or {}
        code = response.get("Error", {}).get("Code") or type(error).__name__
        reason = " ".join(str(response.get("Error", {}).get("Message") or error).split())
        params = {"stream": self.stream, "region": self.region, "endpoint": self.endpoint, "reason": code}
        facts = (f"Kinesis reports: {reason}",)
        if code == "ResourceNotFoundException":
            region = "" if self.region is None else f" --region {self.region}"
            return errors.StreamNotFoundError(
                f"the stream `{self.stream}` does not exist in {self.place}",
                facts=facts,
                remedies=(
                    "correct the name or the region: read_kinesis(.., region=..)",
                    f"or create it:   aws kinesis create-stream --stream-name {self.stream} "
                    f"--shard-count 1{region}",
                ),
                params=params,
            )
        if code in ("NoRegionError", "InvalidRegionError"):
            return errors.OptionInvalidError(
                f"the stream `{self.stream}` has no valid region",
                facts=facts,
                remedies=("name it: read_kinesis(.., region=..), kinesis: {region: ..}, or AWS_REGION",),
                params={**params, "option": "region"},
            )
        if code in _REFUSED:
            return errors.KinesisRefusedError(
                f"Kinesis refuses the access to the stream `{self.stream}` in {self.place}",
                facts=facts,
                remedies=(
                    "allow kinesis:DescribeStreamSummary, ListShards, GetShardIterator and GetRecords",
                    "or use other credentials: AWS_PROFILE, or kinesis: {profile: ..} or {role_arn: ..}",
                ),
                params=params,
            )
        return errors.KinesisUnreachableError(
            f"Kinesis does not answer for the stream `{self.stream}` in {self.place}",
            facts=facts,
            remedies=("check the network, the region and the endpoint",),
            params=params,
        )


def _option(name: str) -> str:
    """The name of an option in Spark's style: ``role_arn`` is ``roleArn``."""
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))


class KinesisFailure(Exception):
    """An error with a code, from a process of Spark: its text carries the fields."""

    def __init__(self, error: HeadraceError) -> None:
        fields = {
            "code": error.code,
            "summary": error.summary,
            "facts": list(error.facts),
            "remedies": list(error.remedies),
            "params": dict(error.params),
        }
        super().__init__(f"{_MARK}{json.dumps(fields, default=str)}")


@contextmanager
def carried() -> Iterator[None]:
    """Raise errors with a code so that the text of Spark's error carries them."""
    try:
        yield
    except HeadraceError as error:
        raise KinesisFailure(error) from error


def find_failure(text: str) -> tuple[type[HeadraceError], Mapping[str, Any]] | None:
    """The class and the fields of an error that `KinesisFailure` has carried."""
    found = _MARKED.search(text)
    if found is None:
        return None
    try:
        fields: dict[str, Any] = json.loads(found[1])
    except ValueError:
        return None
    known: tuple[type[HeadraceError], ...] = (
        errors.StreamNotFoundError,
        errors.StreamRecreatedError,
        errors.KinesisRefusedError,
        errors.KinesisUnreachableError,
        errors.OffsetsExpiredError,
        errors.FlowInterruptedError,
        errors.OptionInvalidError,
        errors.OptionUnsupportedError,
        errors.PackageMissingError,
        errors.SourceUnsupportedError,
    )
    kind = next((one for one in known if one.code == fields.get("code")), None)
    return None if kind is None else (kind, fields)
