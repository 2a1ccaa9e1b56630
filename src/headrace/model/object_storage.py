"""How the buckets of object storage are reached."""

from __future__ import annotations

from dataclasses import dataclass, field


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
