"""How the buckets of object storage are reached."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

ENDPOINT = re.compile(r"https?://[^/@\s]+/?")
"""The URL of a store. Keys have settings of their own, since messages show the endpoint."""


@dataclass(frozen=True, kw_only=True)
class S3Settings:
    """The settings of S3 in a spec. AWS's environment variables and files decide what has no value here."""

    endpoint: str | None = None  # the URL of a store that is compatible with S3; ``None`` is AWS
    region: str | None = None
    profile: str | None = None  # a profile of AWS's files of settings and credentials
    role_arn: str | None = None  # a role to assume with the credentials that were found
    path_style: bool | None = None  # whether the bucket is in the path of a URL and not in its host
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class S3Reach:
    bucket: str
    region: str
    endpoint: str | None  # the URL of the store without the bucket; ``None`` is AWS
    path_style: bool
    access_key_id: str = field(repr=False)
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(repr=False)

    @property
    def allows_http(self) -> bool:
        return self.endpoint is not None and self.endpoint.startswith("http:")

    @property
    def bucket_endpoint(self) -> str | None:
        """The URL with the bucket in its host, unless it is in the path."""
        if self.endpoint is None or self.path_style:
            return self.endpoint
        scheme, _, host = self.endpoint.partition("://")
        return f"{scheme}://{self.bucket}.{host}"

    @property
    def table_options(self) -> dict[str, str]:
        """The options of `deltalake`. Commits create their files conditionally. Each option has
        a value here: for others, `deltalake` would take the value of an environment variable."""
        given = {
            "aws_access_key_id": self.access_key_id,
            "aws_secret_access_key": self.secret_access_key,
            "aws_session_token": self.session_token,
            "aws_region": self.region,
            # AWS_ENDPOINT_URL_S3 of the environment comes before `aws_endpoint`.
            "aws_endpoint_url_s3": self.bucket_endpoint,
            "aws_virtual_hosted_style_request": str(not self.path_style).lower(),
            "aws_allow_http": str(self.allows_http).lower(),
            "aws_conditional_put": "etag",
            "aws_s3_allow_unsafe_rename": "false",
            "aws_skip_signature": "false",
        }
        return {name: value for name, value in given.items() if value is not None}
