"""The sections of the spec for the services of AWS: buckets and streams."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from headrace.declare.spec_types import Flag, Part, Text, matching
from headrace.model.project import ENDPOINT


class _AwsSpec(Part):
    profile: Text | None = None
    """a profile of AWS's files of settings and credentials; by default ``AWS_PROFILE``"""

    role_arn: Text | None = None
    """a role to assume with the credentials that were found"""

    access_key_id: Text | None = None
    """the id of an access key, such as ``${AWS_KEY}``; by default credentials are found as AWS's own tools
    find them: environment, profile, web identity, container, instance"""

    secret_access_key: Text | None = None
    """the secret of the access key, such as ``${AWS_SECRET}``"""

    session_token: Text | None = None
    """the token of temporary credentials"""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise ValueError("must have both `access_key_id` and `secret_access_key`, or none of them")
        return self


class S3Spec(_AwsSpec):
    endpoint: Annotated[Text, matching(ENDPOINT, "must be a URL, such as https://host:9000")] | None = None
    """the URL of a store that is compatible with S3; by default AWS"""

    region: Text | None = None
    """the region of the buckets; by default that of AWS's environment or profile, else ``us-east-1``"""

    path_style: Flag | None = None
    """whether the bucket is in the path of a URL and not in its host; by default ``true`` with an
    ``endpoint``"""


class KinesisSpec(_AwsSpec):
    endpoint: Annotated[Text, matching(ENDPOINT, "must be a URL, such as https://host:9000")] | None = None
    """the URL of a server in place of AWS, such as LocalStack's"""

    region: Text | None = None
    """the region of the streams; by default that of AWS's environment or profile"""


class ObjectStorageSpec(Part):
    s3: S3Spec = Field(default_factory=S3Spec)
    """how buckets of S3, and of stores that are compatible with it, are reached"""
