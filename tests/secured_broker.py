"""A real broker with logins and certificates: three secured listeners beside the plain one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import trustme
from confluent_kafka.admin import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from headrace.runtime.broker import Broker, admin_client, free_port
from headrace.runtime.broker_setup import Ports
from token_server import TokenIssuer

HOST = "localhost"
"""The name in the broker's certificate."""

LISTENERS = ("SASL_SSL", "SSL", "OAUTH")
"""A login over TLS; TLS with a certificate of the client; a login with a token over TLS."""
_PROTOCOLS = {"OAUTH": "SASL_SSL"}  # of listeners that do not have its name

OAUTH_SCOPE = "https://shop.test/.default"
"""The audience that tokens must have."""

_SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_ITERATIONS = 4096
_TIMEOUT_S = 10.0


class SecuredBroker(Broker):
    """Clients of the plain listener may do everything; on the others, the ACLs of a topic hold.

    Args:
        directory: Its data, and its certificates as PEM files.
        users: Passwords by user, for ``SCRAM-SHA-256``, ``SCRAM-SHA-512`` and ``PLAIN``.
    """

    def __init__(self, directory: Path, users: Mapping[str, str]) -> None:
        super().__init__(directory, bound=True)
        directory.mkdir(parents=True)
        self._users = users
        self._secured = {name: free_port() for name in LISTENERS}
        self.authority = directory / "ca.pem"
        self.client = directory / "client-certificate.pem"
        self.key = directory / "client-key.pem"
        self._keystore = directory / "broker.pem"
        self._make_certificates()
        self.issuer = TokenIssuer()
        self._keys = directory / "keys.json"
        self.issuer.write_keys(self._keys)

    def address(self, listener: str) -> str:
        """Returns the address of a secured listener, one of `LISTENERS`."""
        return f"{HOST}:{self._secured[listener]}"

    def _start(self) -> str:
        bootstrap = super()._start()
        self._add_users(bootstrap)
        return bootstrap

    def _make_certificates(self) -> None:
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(self.authority))
        broker, client = authority.issue_cert(HOST), authority.issue_cert("client.test")
        certificate = b"".join(one.bytes() for one in broker.cert_chain_pems)
        self._keystore.write_bytes(_pkcs8(broker) + certificate)
        client.cert_chain_pems[0].write_to_path(str(self.client))
        self.key.write_bytes(_pkcs8(client))

    def _launch(self, command: list[str]) -> int:
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self._keys.as_uri()}"
        return super()._launch([command[0], allowed, *command[1:]])

    def _write_properties(self, ports: Ports) -> None:
        super()._write_properties(ports)
        secured = "".join(f",{name}://127.0.0.1:{port}" for name, port in self._secured.items())
        listeners = f"PLAINTEXT://127.0.0.1:{ports.client},CONTROLLER://127.0.0.1:{ports.controller}"
        advertised = "".join(f",{name}://{self.address(name)}" for name in LISTENERS)
        settings = {
            # The last line of a key counts.
            "listeners": listeners + secured,
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{ports.client}{advertised}",
            **self._security(),
        }
        with self._properties.open("a") as file:
            file.writelines(f"{key}={value}\n" for key, value in settings.items())

    def _security(self) -> dict[str, str]:
        logins = " ".join(f'user_{name}="{_escaped(word)}"' for name, word in self._users.items())
        kafka = "org.apache.kafka.common.security"
        sasl, oauth = "listener.name.sasl_ssl", "listener.name.oauth.oauthbearer"
        return {
            "listener.security.protocol.map": ",".join(
                [f"{name}:{_PROTOCOLS.get(name, name)}" for name in ("PLAINTEXT", *LISTENERS)]
                + ["CONTROLLER:PLAINTEXT"]
            ),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self._keystore),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority),
            "listener.name.ssl.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": ",".join((*_SCRAM, "PLAIN")),
            f"{sasl}.plain.sasl.jaas.config": f"{kafka}.plain.PlainLoginModule required {logins};",
            **{
                f"{sasl}.{name.lower()}.sasl.jaas.config": f"{kafka}.scram.ScramLoginModule required;"
                for name in _SCRAM
            },
            "listener.name.oauth.sasl.enabled.mechanisms": "OAUTHBEARER",
            f"{oauth}.sasl.jaas.config": f"{kafka}.oauthbearer.OAuthBearerLoginModule required;",
            f"{oauth}.sasl.server.callback.handler.class": (
                f"{kafka}.oauthbearer.OAuthBearerValidatorCallbackHandler"
            ),
            f"{oauth}.sasl.oauthbearer.jwks.endpoint.url": self._keys.as_uri(),
            f"{oauth}.sasl.oauthbearer.expected.audience": OAUTH_SCOPE,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "true",
            "super.users": "User:ANONYMOUS",
        }

    def _add_users(self, bootstrap: str) -> None:
        admin = admin_client(bootstrap)
        changes: list[UserScramCredentialAlteration] = [
            UserScramCredentialUpsertion(
                user,
                ScramCredentialInfo(getattr(ScramMechanism, name.replace("-", "_")), _ITERATIONS),
                password.encode(),
            )
            for user, password in self._users.items()
            for name in _SCRAM
        ]
        # The broker refuses two changes of one user in one request.
        for change in changes:
            for future in admin.alter_user_scram_credentials([change]).values():
                future.result(_TIMEOUT_S)


def _pkcs8(certificate: trustme.LeafCert) -> bytes:
    """Returns the key of a certificate in the only form that Kafka reads from a PEM file."""
    key = load_pem_private_key(certificate.private_key_pem.bytes(), None)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _escaped(text: str) -> str:
    """Escapes a text for a JAAS line of a properties file, which has its own level of backslashes."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\\", "\\\\")
