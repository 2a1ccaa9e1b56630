"""The logins of Kafka's clients: one set of settings, as Java's client and as librdkafka need them.

A user and a password are in ``sasl.username`` and ``sasl.password``, or in ``sasl.jaas.config``. The client
of an OpenID provider is in ``sasl.oauthbearer.client.id`` and ``sasl.oauthbearer.client.secret``, or in
``sasl.jaas.config``. The IAM of Amazon MSK has settings of Java alone; librdkafka gets tokens made of the
same credentials.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

from headrace.errors import KafkaLoginError

IAM = "AWS_MSK_IAM"
OAUTH = "OAUTHBEARER"
_CLIENT = "sasl.oauthbearer."
_OIDC = {"clientId": "client.id", "clientSecret": "client.secret", "scope": "scope"}
"""What Java's login has of a client of OpenID Connect, with librdkafka's names."""

_MODULES = "org.apache.kafka.common.security"
_PASSWORD_MODULES = {
    "PLAIN": f"{_MODULES}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{_MODULES}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{_MODULES}.scram.ScramLoginModule",
}
_OAUTH_MODULE = f"{_MODULES}.oauthbearer.OAuthBearerLoginModule"
_OAUTH_HANDLER = f"{_MODULES}.oauthbearer.OAuthBearerLoginCallbackHandler"
_IAM_MODULE = "software.amazon.msk.auth.iam.IAMLoginModule"
_IAM_HANDLER = "software.amazon.msk.auth.iam.IAMClientCallbackHandler"
_SIGNER = "aws_msk_iam_sasl_signer"

_JAAS_VALUE = r'\b{}\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s";]+))'
_REGION = re.compile(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com", re.IGNORECASE)


class SettingError(ValueError):
    """A setting that a client cannot use."""

    def __init__(self, key: str, wrong: str, remedies: list[str]) -> None:
        super().__init__(f"{key} {wrong}")
        self.key, self.wrong, self.remedies = key, wrong, remedies


def mechanism_of(settings: Mapping[str, str]) -> str:
    return settings.get("sasl.mechanism", settings.get("sasl.mechanisms", "GSSAPI")).upper()


def iam_settings(*, region: str | None, profile: str | None, role_arn: str | None) -> dict[str, str]:
    """Java's settings for the IAM of Amazon MSK."""
    options = {"awsProfileName": profile, "awsRoleArn": role_arn, "awsStsRegion": region}
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": IAM,
        "sasl.jaas.config": _jaas(_IAM_MODULE, {k: v for k, v in options.items() if v is not None}),
        "sasl.client.callback.handler.class": _IAM_HANDLER,
    }


def iam_region(servers: str, given: str | None = None) -> str | None:
    """The region of a cluster of Amazon MSK, by default from the names of its brokers."""
    found = _REGION.search(servers)
    return given or (found[1] if found else None)


def add_java_login(left: dict[str, str]) -> None:
    """Replace librdkafka's settings of a login by those of Java's client."""
    if "sasl.mechanisms" in left:
        left.setdefault("sasl.mechanism", left.pop("sasl.mechanisms"))
    mechanism = mechanism_of(left)
    user, password = left.pop("sasl.username", None), left.pop("sasl.password", None)
    module = _PASSWORD_MODULES.get(mechanism)
    if user is not None and password is not None and module is not None:
        left.setdefault("sasl.jaas.config", _jaas(module, {"username": user, "password": password}))
    if mechanism == OAUTH and f"{_CLIENT}client.id" in left:
        values = {java: left.pop(_CLIENT + own) for java, own in _OIDC.items() if _CLIENT + own in left}
        left.pop(f"{_CLIENT}method", None)
        left.setdefault("sasl.jaas.config", _jaas(_OAUTH_MODULE, values))
        left.setdefault("sasl.login.callback.handler.class", _OAUTH_HANDLER)


def add_librdkafka_login(settings: Mapping[str, str], found: dict[str, Any]) -> None:
    """Add what librdkafka needs for the login of Java's settings.

    Raises:
        SettingError: The package that makes tokens of IAM is not installed, or the region is not known.
    """
    login = settings.get("sasl.jaas.config", "")
    module = login.partition("required")[0]
    if mechanism_of(settings) == IAM:
        found.pop("sasl.mechanisms", None)
        found["sasl.mechanism"] = OAUTH
        found["oauth_cb"] = _iam_tokens(settings, login)
    elif re.search("Plain|Scram", module):
        _copy(login, {"username": "sasl.username", "password": "sasl.password"}, found)
    elif "OAuthBearer" in module and f"{_CLIENT}token.endpoint.url" in settings:
        found.setdefault(f"{_CLIENT}method", "oidc")
        _copy(login, {java: _CLIENT + own for java, own in _OIDC.items()}, found)


def _copy(login: str, names: Mapping[str, str], found: dict[str, Any]) -> None:
    for java, own in names.items():
        if (value := _jaas_value(login, java)) is not None:
            found.setdefault(own, value)


def _jaas_value(login: str, name: str) -> str | None:
    written = re.search(_JAAS_VALUE.format(name), login)
    if written is None:
        return None
    return re.sub(r"\\(.)", r"\1", written[1]) if written[1] is not None else written[2]


def _jaas(module: str, options: Mapping[str, str]) -> str:
    escaped = ((name, value.replace("\\", "\\\\").replace('"', '\\"')) for name, value in options.items())
    return " ".join([f"{module} required", *(f'{name}="{value}"' for name, value in escaped)]) + ";"


def _iam_tokens(settings: Mapping[str, str], login: str) -> Any:
    region = iam_region(settings.get("bootstrap.servers", ""), _jaas_value(login, "awsStsRegion"))
    if region is None:
        remedy = 'add the region to the login:   awsStsRegion="eu-west-1"'
        raise SettingError("sasl.jaas.config", "has no region, and the brokers' names have none", [remedy])
    if find_spec(_SIGNER) is None:
        raise SettingError(
            "sasl.mechanism",
            f"is {IAM}, which needs a package that is not installed",
            ["install it:   python -m pip install 'headrace[msk]'"],
        )
    profile, role_arn = (_jaas_value(login, name) for name in ("awsProfileName", "awsRoleArn"))
    return partial(_iam_token, region, profile, role_arn)


def _iam_token(region: str, profile: str | None, role_arn: str | None, _config: str) -> tuple[str, float]:
    """A token of IAM, and when it expires, in seconds since 1970; `_config` is librdkafka's.

    Raises:
        KafkaLoginError: AWS's libraries find no credentials.
    """
    from aws_msk_iam_sasl_signer import MSKAuthTokenProvider as Signer
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        if role_arn is not None:
            token, expires_ms = Signer.generate_auth_token_from_role_arn(region, role_arn)
        elif profile is not None:
            token, expires_ms = Signer.generate_auth_token_from_profile(region, profile)
        else:
            token, expires_ms = Signer.generate_auth_token(region)
    except (BotoCoreError, ClientError, ValueError, AttributeError) as error:
        # Without credentials, the signer reads an attribute of `None`.
        reason = "no credentials were found" if isinstance(error, AttributeError) else str(error)
        raise KafkaLoginError(
            f"no login for Amazon MSK can be made with the credentials of AWS: {reason}",
            remedies=["see which credentials AWS's tools find:   aws sts get-caller-identity"],
            params={"region": region},
        ) from error
    return token, expires_ms / 1000
