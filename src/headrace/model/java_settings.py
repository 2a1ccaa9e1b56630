"""Kafka settings as Java's client takes them, which is the one that Spark reads with."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.model.kafka_settings import NO_HOST_CHECK, REGISTRY, SettingError, ciphers, read_text

_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_PLAIN_KEY = "-----BEGIN PRIVATE KEY-----"


def build(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings for Java.

    Raises:
        SettingError: A key or a certificate cannot be read.
    """
    left = {key: value for key, value in settings.items() if not key.startswith(REGISTRY)}
    _login(left)
    _authorities(left)
    _client_certificate(left)
    if left.get("ssl.endpoint.identification.algorithm", "").lower() == NO_HOST_CHECK:
        left["ssl.endpoint.identification.algorithm"] = ""
    if "ssl.cipher.suites" in left:
        suites = ciphers(settings, java=True)
        del left["ssl.cipher.suites"]
        if suites:
            left["ssl.cipher.suites"] = suites
    return left


def _login(left: dict[str, str]) -> None:
    if "sasl.mechanisms" in left:
        left.setdefault("sasl.mechanism", left.pop("sasl.mechanisms"))
    user, password = left.pop("sasl.username", None), left.pop("sasl.password", None)
    module = _LOGIN_MODULES.get(left.get("sasl.mechanism", "").upper())
    if user is not None and password is not None and module is not None:
        login = f'{module} required username="{_escaped(user)}" password="{_escaped(password)}";'
        left.setdefault("sasl.jaas.config", login)


def _authorities(left: dict[str, str]) -> None:
    location, text = left.pop("ssl.ca.location", None), left.pop("ssl.ca.pem", None)
    if any(key.startswith("ssl.truststore.") for key in left):
        return
    if text is not None:
        left |= {"ssl.truststore.certificates": text, "ssl.truststore.type": "PEM"}
    elif location is not None:
        left |= {"ssl.truststore.location": location, "ssl.truststore.type": "PEM"}


def _client_certificate(left: dict[str, str]) -> None:
    """Java takes a certificate and its key from two places only as text, not as files."""
    texts = {}
    for name in ("certificate", "key"):
        location, text = f"ssl.{name}.location", f"ssl.{name}.pem"
        if text in left:
            texts[name] = left[text], text
        elif location in left:
            texts[name] = read_text(left, location), location
        left.pop(location, None)
        left.pop(text, None)
    if not texts or any(key.startswith("ssl.keystore.") for key in left):
        return
    if len(texts) == 1:
        (name, (_, key)), missing = (
            next(iter(texts.items())),
            "key" if "certificate" in texts else "certificate",
        )
        raise SettingError(
            key,
            f"gives the client's {name} without its {missing}",
            [f"add ssl.{missing}.location, the path of a PEM file"],
        )
    certificate, (key_text, origin) = texts["certificate"][0], texts["key"]
    left |= {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": certificate,
        "ssl.keystore.key": _javas_key(key_text, origin, left.pop("ssl.key.password", None)),
    }


def _javas_key(text: str, origin: str, password: str | None) -> str:
    """The key in the one form that Java reads everywhere: PKCS #8, not encrypted."""
    if _PLAIN_KEY in text:
        return text
    encrypted = "ENCRYPTED" in text
    if encrypted and password is None:
        raise SettingError(
            origin, "gives a key that is encrypted", ["add ssl.key.password, such as ${KEY_PASSWORD}"]
        )
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        load_pem_private_key,
    )

    try:
        key = load_pem_private_key(text.encode(), password.encode() if password and encrypted else None)
    except (TypeError, ValueError) as error:
        if encrypted:
            remedy = "give the password that the key was encrypted with"
            raise SettingError("ssl.key.password", f"does not open the key of {origin}", [remedy]) from error
        raise SettingError(origin, "gives no private key in PEM", ["give a PEM file with a key"]) from error
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
