"""What the embedded broker asks of clients on its secured listeners: logins and certificates.

For tests, and for whoever wants to try a profile with a secured Kafka before there is one.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

LISTENERS = ("SASL_SSL", "SSL")
"""A login over TLS, and TLS with a certificate of the client's."""

_SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_ITERATIONS = 4096
_VALID = timedelta(days=3650)
_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Security:
    """Secured listeners beside the plain one.

    Whoever comes through the plain listener may do everything; on the others, a topic that has rules
    of its own is for those only whom a rule names.

    Args:
        users: Passwords by user, for ``SCRAM-SHA-256``, ``SCRAM-SHA-512`` and ``PLAIN``.
        hosts: The names that the broker's certificate is good for; clients are sent to the first.

    Example:
        >>> broker = Broker(Path("kafka"), security=Security({"shop": "secret"}))  # doctest: +SKIP
        >>> broker.start()  # doctest: +SKIP
        >>> broker.address("SASL_SSL")  # doctest: +SKIP
        'localhost:53212'
    """

    users: Mapping[str, str] = field(repr=False)
    hosts: tuple[str, ...] = ("localhost",)

    def properties(self, certificates: Certificates) -> dict[str, str]:
        """The broker's settings for its secured listeners."""
        logins = " ".join(f'user_{name}="{_escaped(word)}"' for name, word in self.users.items())
        kafka = "org.apache.kafka.common.security"
        sasl = "listener.name.sasl_ssl"
        return {
            "listener.security.protocol.map": ",".join(
                [f"{name}:{name}" for name in ("PLAINTEXT", *LISTENERS)] + ["CONTROLLER:PLAINTEXT"]
            ),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(certificates.broker),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(certificates.authority),
            "listener.name.ssl.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": ",".join((*_SCRAM, "PLAIN")),
            f"{sasl}.plain.sasl.jaas.config": f"{kafka}.plain.PlainLoginModule required {logins};",
            **{
                f"{sasl}.{name.lower()}.sasl.jaas.config": f"{kafka}.scram.ScramLoginModule required;"
                for name in _SCRAM
            },
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "true",
            "super.users": "User:ANONYMOUS",
        }

    def add_users(self, admin: AdminClient) -> None:
        """Make the users known for SCRAM, with their present passwords."""
        from confluent_kafka.admin import (
            ScramCredentialInfo,
            ScramMechanism,
            UserScramCredentialAlteration,
            UserScramCredentialUpsertion,
        )

        changes: list[UserScramCredentialAlteration] = [
            UserScramCredentialUpsertion(
                user,
                ScramCredentialInfo(getattr(ScramMechanism, name.replace("-", "_")), _ITERATIONS),
                password.encode(),
            )
            for user, password in self.users.items()
            for name in _SCRAM
        ]
        # One change of a user at a time: the broker refuses two of one user in one request.
        for change in changes:
            for future in admin.alter_user_scram_credentials([change]).values():
                future.result(_TIMEOUT_S)


@dataclass(frozen=True)
class Certificates:
    """Where certificates and keys lie, all of them PEM.

    Args:
        authority: The authority that has signed the others.
        broker: The broker's key and certificate, in one file.
        client: A client's certificate.
        key: That client's key.
    """

    authority: Path
    broker: Path
    client: Path
    key: Path

    @classmethod
    def within(cls, folder: Path) -> Certificates:
        return cls(
            folder / "ca.pem",
            folder / "broker.pem",
            folder / "client-certificate.pem",
            folder / "client-key.pem",
        )

    def make(self, hosts: tuple[str, ...]) -> None:
        """Write those of a new authority, unless there is one already."""
        if self.authority.is_file():
            return
        self.authority.parent.mkdir(parents=True, exist_ok=True)
        files = dict(self._issue(hosts))
        # The authority last: a start that was broken off begins anew.
        for path in (self.broker, self.client, self.key, self.authority):
            _write_private(path, files[path])

    def _issue(self, hosts: tuple[str, ...]) -> Iterator[tuple[Path, bytes]]:
        from cryptography.hazmat.primitives.asymmetric import ec

        authority_key = ec.generate_private_key(ec.SECP256R1())
        authority = _certificate("Headrace's own authority", authority_key, None, authority_key, ())
        yield self.authority, _pem(authority)
        broker_key = ec.generate_private_key(ec.SECP256R1())
        broker = _certificate(hosts[0], broker_key, authority, authority_key, hosts)
        yield self.broker, _pem_key(broker_key) + _pem(broker)
        client_key = ec.generate_private_key(ec.SECP256R1())
        yield self.client, _pem(_certificate("client", client_key, authority, authority_key, ()))
        yield self.key, _pem_key(client_key)


def _certificate(
    name: str,
    key: EllipticCurvePrivateKey,
    issuer: x509.Certificate | None,
    signer: EllipticCurvePrivateKey,
    hosts: tuple[str, ...],
) -> x509.Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + _VALID)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
    )
    if hosts:
        builder = builder.add_extension(
            x509.SubjectAlternativeName(map(_general_name, hosts)), critical=False
        )
    return builder.sign(signer, hashes.SHA256())


def _general_name(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _pem_key(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write_private(path: Path, data: bytes) -> None:
    path.touch(0o600)
    path.write_bytes(data)


def _escaped(text: str) -> str:
    """A text for a JAAS line of a properties file, which takes one level of backslashes for itself."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\\", "\\\\")
