"""Kafka settings as librdkafka takes them, which refuses every name that it does not know."""

from __future__ import annotations

import re
from collections.abc import Mapping

from headrace.model.kafka_settings import NO_HOST_CHECK, SettingError, ciphers

_KNOWN = re.compile(
    r"bootstrap\.servers|metadata\.broker\.list|client\.(id|rack|dns\.lookup)|security\.protocol"
    r"|sasl\.(mechanisms?|username|password|kerberos\.(service\.name|principal|keytab|kinit\.cmd"
    r"|min\.time\.before\.relogin))"
    r"|sasl\.oauthbearer\.(config|method|client\.id|client\.secret|scope|extensions|token\.endpoint\.url)"
    r"|enable\.sasl\.oauthbearer\.unsecure\.jwt|enable\.ssl\.certificate\.verification"
    r"|ssl\.(curves\.list|sigalgs\.list|key\.(location|password|pem)|certificate\.(location|pem)"
    r"|ca\.(location|pem|certificate\.stores)|crl\.location|providers|endpoint\.identification\.algorithm)"
    r"|socket\.(timeout|connection\.setup\.timeout)\.ms|socket\.(send|receive)\.buffer\.bytes"
    r"|socket\.(keepalive\.enable|nagle\.disable|max\.fails)"
    r"|broker\.address\.(ttl|family)|broker\.version\.fallback"
)
"""What a client needs to connect. The rest tunes Java's consumer, or is of Java alone."""

_JAAS_VALUE = r'\b{}\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s";]+))'
_LOGIN_MODULES = re.compile(r"Plain|Scram")


def build(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings for librdkafka.

    Raises:
        SettingError: Certificates are in a store that only Java reads.
    """
    found = {key: value for key, value in settings.items() if _KNOWN.fullmatch(key)}
    _login(settings, found)
    _authorities(settings, found)
    _client_certificate(settings, found)
    if found.get("ssl.endpoint.identification.algorithm") == "":
        found["ssl.endpoint.identification.algorithm"] = NO_HOST_CHECK
    if suites := ciphers(settings, java=False):
        found["ssl.cipher.suites"] = suites
    return found


def _login(settings: Mapping[str, str], found: dict[str, str]) -> None:
    login = settings.get("sasl.jaas.config", "")
    if not _LOGIN_MODULES.search(login.partition("required")[0]):
        return
    for name in ("username", "password"):
        if written := re.search(_JAAS_VALUE.format(name), login):
            text = re.sub(r"\\(.)", r"\1", written[1]) if written[1] is not None else written[2]
            found.setdefault(f"sasl.{name}", text)


def _authorities(settings: Mapping[str, str], found: dict[str, str]) -> None:
    if found.keys() & {"ssl.ca.location", "ssl.ca.pem"}:
        return
    if (text := settings.get("ssl.truststore.certificates")) is not None:
        found["ssl.ca.pem"] = text
    elif (location := settings.get("ssl.truststore.location")) is not None:
        if settings.get("ssl.truststore.type", "").upper() != "PEM":
            raise SettingError(
                "ssl.truststore.location",
                "is a Java key store; librdkafka, which Headrace also uses, cannot read it",
                [
                    "use a PEM file with the authorities:   ssl.ca.location: ca.pem",
                    f"keytool -exportcert -rfc -keystore {location} -alias NAME > ca.pem",
                ],
            )
        found["ssl.ca.location"] = location


def _client_certificate(settings: Mapping[str, str], found: dict[str, str]) -> None:
    if any(f"ssl.certificate.{form}" in found for form in ("location", "pem")):
        return
    if chain := settings.get("ssl.keystore.certificate.chain"):
        found["ssl.certificate.pem"] = chain
        found["ssl.key.pem"] = settings.get("ssl.keystore.key", "")
        return
    location, kind = settings.get("ssl.keystore.location"), settings.get("ssl.keystore.type", "JKS").upper()
    if location is None:
        return
    if kind == "PEM":
        # One file holds both, and each reader passes over what is not its own.
        found |= {"ssl.certificate.location": location, "ssl.key.location": location}
    elif kind == "PKCS12":
        found["ssl.keystore.location"] = location
        if (password := settings.get("ssl.keystore.password")) is not None:
            found["ssl.keystore.password"] = password
    else:
        raise SettingError(
            "ssl.keystore.location",
            f"is a key store of the type {kind}; librdkafka, which Headrace also uses, cannot read it",
            [
                "if it is a PKCS #12 store, add:   ssl.keystore.type: PKCS12",
                f"else convert it:   keytool -importkeystore -srckeystore {location} "
                "-destkeystore client.p12 -deststoretype PKCS12",
                "or use PEM files:   ssl.certificate.location, ssl.key.location",
            ],
        )
