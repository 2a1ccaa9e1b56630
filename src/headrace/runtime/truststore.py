"""The certificate authorities of this machine, in a format that Java reads.

The wheel's Java has its own list of authorities. It does not know those that an administrator, or the
proxy of a company, has added to the machine.
"""

from __future__ import annotations

import hashlib
import os
import ssl
import warnings
from pathlib import Path

from headrace.runtime.places import cache_folder

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
        unfinished = store.with_suffix(f".{os.getpid()}")
        unfinished.write_bytes(build_trust_store(pem))
        unfinished.replace(store)
    return (
        f"-Djavax.net.ssl.trustStore={store}",
        f"-Djavax.net.ssl.trustStorePassword={_PASSWORD}",
        "-Djavax.net.ssl.trustStoreType=PKCS12",
    )
