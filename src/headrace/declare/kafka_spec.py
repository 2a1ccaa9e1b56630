"""``kafka:`` in a spec: settings under Kafka's own names, and the login of a service by its name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from headrace.declare.spec_types import Part, Settings, Text
from headrace.model.kafka_logins import iam_region, iam_settings
from headrace.model.kafka_settings import EMBEDDED, REGISTRY

_SERVERS = "bootstrap.servers"
Written = Mapping[str, tuple[str, str]]
"""Kafka's settings, each with the key of the connection that it follows from, and its value."""


class ConfluentCloud(Part):
    """The login of Confluent Cloud."""

    type: Literal["confluent_cloud"]

    key: Text
    """the API key of the cluster"""

    secret: Text
    """the secret of the API key"""

    registry_url: Text | None = None
    """the URL of the schema registry"""

    registry_key: Text | None = None
    """the API key of the schema registry"""

    registry_secret: Text | None = None
    """the secret of the API key of the schema registry"""

    @model_validator(mode="after")
    def _whole(self) -> ConfluentCloud:
        if len({one is None for one in (self.registry_url, self.registry_key, self.registry_secret)}) > 1:
            raise ValueError("must have all of `registry_url`, `registry_key` and `registry_secret`, or none")
        return self

    @property
    def settings(self) -> Written:
        """Source: Confluent Cloud, "Configure clients"."""
        registry = {
            f"{REGISTRY}url": ("registry_url", str(self.registry_url)),
            f"{REGISTRY}basic.auth.user.info": (
                "registry_secret",
                f"{self.registry_key}:{self.registry_secret}",
            ),
        }
        return {
            **_with_password("PLAIN", ("key", self.key), ("secret", self.secret)),
            **(registry if self.registry_url is not None else {}),
        }


class Msk(Part):
    """The login of Amazon MSK."""

    type: Literal["msk"]

    auth: Literal["iam", "scram", "tls"] = "iam"
    """how clients log in; by default ``iam``, with the credentials that AWS's own tools would find"""

    region: Text | None = None
    """the region of the cluster (``iam``); by default from the names of its brokers"""

    profile: Text | None = None
    """a profile of AWS's files of settings and credentials (``iam``)"""

    role_arn: Text | None = None
    """a role to assume (``iam``)"""

    username: Text | None = None
    """the user of a secret in AWS Secrets Manager (``scram``)"""

    password: Text | None = None
    """the user's password (``scram``)"""

    certificate: Text | None = None
    """the path of the client's certificate, a PEM file (``tls``)"""

    private_key: Text | None = None
    """the path of the certificate's key, a PEM file (``tls``)"""

    @model_validator(mode="after")
    def _whole(self) -> Msk:
        keys = {
            "iam": ("region", "profile", "role_arn"),
            "scram": ("username", "password"),
            "tls": ("certificate", "private_key"),
        }
        for auth, names in keys.items():
            for name in names:
                is_given = getattr(self, name) is not None
                if is_given and auth != self.auth:
                    raise ValueError(f"has `{name}`, which is for `auth: {auth}`, not for `{self.auth}`")
                if not is_given and auth == self.auth != "iam":
                    raise ValueError(f"needs `{name}` for `auth: {auth}`")
        if self.profile is not None and self.role_arn is not None:
            # Java's client would take the profile, and librdkafka the role with other credentials.
            raise ValueError("has `profile` and `role_arn`: name a profile of AWS that has the role")
        return self

    @property
    def settings(self) -> Written:
        """Source: Amazon MSK Developer Guide, "Authentication and authorization for Apache Kafka APIs"."""
        match self.auth:
            case "iam":
                found = iam_settings(region=self.region, profile=self.profile, role_arn=self.role_arn)
                return {key: ("auth", value) for key, value in found.items()}
            case "scram":
                user, password = ("username", str(self.username)), ("password", str(self.password))
                return _with_password("SCRAM-SHA-512", user, password)
            case "tls":
                return {
                    "security.protocol": ("auth", "SSL"),
                    "ssl.certificate.location": ("certificate", str(self.certificate)),
                    "ssl.key.location": ("private_key", str(self.private_key)),
                }


_ENDPOINT = re.compile(r"(?:^|;)\s*Endpoint=sb://([^/;\s:]+)", re.IGNORECASE)
_NAMESPACE = re.compile(r"[A-Za-z0-9.-]+\.[A-Za-z0-9.-]+")


class EventHubs(Part):
    """The login of Azure Event Hubs."""

    type: Literal["event_hubs"]

    connection_string: Text | None = None
    """the connection string of the namespace, with its ``SharedAccessKey``"""

    namespace: Text | None = None
    """the host of the namespace, ``NAME.servicebus.windows.net``, for a login with Microsoft Entra"""

    tenant: Text | None = None
    """the id of the tenant (Microsoft Entra)"""

    client_id: Text | None = None
    """the id of the application (Microsoft Entra)"""

    client_secret: Text | None = None
    """the secret of the application (Microsoft Entra)"""

    token_url: Text | None = None
    """the address that gives tokens (Microsoft Entra); by default that of the tenant in the public cloud"""

    @model_validator(mode="after")
    def _whole(self) -> EventHubs:
        entra = ("namespace", "tenant", "client_id", "client_secret")
        given = [name for name in (*entra, "token_url") if getattr(self, name) is not None]
        if self.connection_string is not None:
            if given:
                raise ValueError(f"has `connection_string`, and `{given[0]}` of another login: remove one")
            if not _ENDPOINT.search(self.connection_string):
                raise ValueError(
                    "has a `connection_string` without Endpoint=sb://NAME.servicebus.windows.net/"
                )
            if "SharedAccessKey=" not in self.connection_string:
                raise ValueError("has a `connection_string` without SharedAccessKey=..")
        elif missing := [name for name in entra if name not in given]:
            needs = " and ".join(f"`{name}`" for name in missing)
            raise ValueError(f"needs `connection_string`, or for Microsoft Entra {needs}")
        elif not _NAMESPACE.fullmatch(str(self.namespace)):
            raise ValueError("has a `namespace` that is not a host name, such as NAME.servicebus.windows.net")
        return self

    @property
    def settings(self) -> Written:
        """Source: Microsoft's "Apache Kafka client configurations for Azure Event Hubs", and its tutorials of
        the logins by connection string and by OAuth."""
        if self.connection_string is not None:
            found = _ENDPOINT.search(self.connection_string)
            assert found is not None
            key = "connection_string"
            login = _with_password("PLAIN", (key, "$ConnectionString"), (key, self.connection_string.strip()))
            return {_SERVERS: (key, f"{found[1]}:9093"), **login, **_kept_alive(key)}
        token_url = f"https://login.microsoftonline.com/{self.tenant}/oauth2/v2.0/token"
        oauth = "sasl.oauthbearer"
        return {
            _SERVERS: ("namespace", f"{self.namespace}:9093"),
            "security.protocol": ("type", "SASL_SSL"),
            "sasl.mechanism": ("type", "OAUTHBEARER"),
            f"{oauth}.method": ("type", "oidc"),
            f"{oauth}.client.id": ("client_id", str(self.client_id)),
            f"{oauth}.client.secret": ("client_secret", str(self.client_secret)),
            f"{oauth}.scope": ("namespace", f"https://{self.namespace}/.default"),
            f"{oauth}.token.endpoint.url": ("token_url", self.token_url or token_url),
            **_kept_alive("namespace"),
        }


def _with_password(mechanism: str, user: tuple[str, str], password: tuple[str, str]) -> Written:
    return {
        "security.protocol": ("type", "SASL_SSL"),
        "sasl.mechanism": ("type", mechanism),
        "sasl.username": user,
        "sasl.password": password,
    }


def _kept_alive(key: str) -> Written:
    """Azure closes connections that are idle for four minutes."""
    return {"metadata.max.age.ms": (key, "180000"), "connections.max.idle.ms": (key, "180000")}


_OTHER_LOGINS = ("sasl.jaas.config", "sasl.mechanisms")
"""Settings with which one client would log in as another user."""
_MAY_BE_SET = frozenset({_SERVERS, "metadata.max.age.ms", "connections.max.idle.ms"})
"""Settings of a connection that the user can set beside it."""

Connection = ConfluentCloud | Msk | EventHubs
CONNECTIONS: Mapping[str, type[Connection]] = {
    "confluent_cloud": ConfluentCloud,
    "msk": Msk,
    "event_hubs": EventHubs,
}


class KafkaSpec(BaseModel):
    """``kafka``: settings under Kafka's own names, and the connections of addresses in files."""

    model_config = ConfigDict(extra="allow", frozen=True, defer_build=True)
    __pydantic_extra__: dict[str, Annotated[str, Field(strict=True)]] = Field(init=False)

    brokers: Settings = Field(default_factory=dict)
    """maps addresses of brokers in files, such as ``"*.servicebus.windows.net:9093"``, to the connection of a
    profile by its name, or to ``embedded``, the connection of the chosen profile"""

    connection: Annotated[Connection, Field(discriminator="type")] | None = None
    """the login of a service, in place of Kafka's settings for it: ``{type: confluent_cloud, ..}``,
    ``{type: msk, ..}`` or ``{type: event_hubs, ..}``"""

    @model_validator(mode="after")
    def _agree(self) -> KafkaSpec:
        if self.connection is None:
            return self
        given = self.__pydantic_extra__ or {}
        for key in (*self.connection.settings, *_OTHER_LOGINS):
            if key in given and key not in _MAY_BE_SET:
                raise ValueError(f"has `{key}` beside `connection`, which says it: remove one of them")
        servers = self.settings.get(_SERVERS, EMBEDDED)
        if servers == EMBEDDED:
            raise ValueError("has a `connection`, which needs `bootstrap.servers`, the addresses of brokers")
        match self.connection:
            case Msk(auth="iam", region=region):
                named = iam_region(servers)
                if (region or named) is None:
                    raise ValueError("has a `connection` without `region`, and the brokers' names have none")
                if region is not None and named not in (None, region):
                    raise ValueError(f"has a `connection` with `region: {region}`, and brokers in {named}")
        return self

    @property
    def settings(self) -> dict[str, str]:
        """The settings of Kafka's clients, with the settings that follow from `connection`."""
        given = dict(self.__pydantic_extra__ or {})
        if self.connection is None:
            return given
        found = {key: value for key, (_, value) in self.connection.settings.items()}
        if found.get(_SERVERS) and given.get(_SERVERS) == EMBEDDED:
            del given[_SERVERS]
        return {**found, **given}

    @property
    def written(self) -> dict[str, str]:
        """The key of `connection` that each setting follows from."""
        if self.connection is None:
            return {}
        given = self.__pydantic_extra__ or {}
        return {
            key: name
            for key, (name, _) in self.connection.settings.items()
            if key not in given or given[key] == EMBEDDED
        }
