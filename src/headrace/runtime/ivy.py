"""Ivy as a program: PySpark contains its jar, and Maven Central is its default repository."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies
from xml.sax.saxutils import quoteattr

from headrace.errors import SparkStartError, UsageError
from headrace.runtime.java import Java

SETTINGS_VARIABLE = "HEADRACE_IVY_SETTINGS"


@dataclass(frozen=True, order=True)
class Coordinate:
    """An artifact's name in a Maven repository."""

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
        """The name of the file in a repository."""
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
    """Returns an ``ivy.xml`` that lists exactly these artifacts."""
    # Where a mirror has no POM for a module, Ivy knows no configuration `master` of it.
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
    """Starts Ivy in its own folder; jars arrive in ``folder/cache`` and then in ``folder/jars``.

    Its output goes to ``folder/ivy.log``. It checks no checksums: those of the lock are stronger, and each
    check would cost one more request.
    """
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
        raise SparkStartError("the installed pyspark has no Ivy jar", remedies=["headrace doctor"])
    return found[-1]


def _settings() -> list[str]:
    chosen = os.environ.get(SETTINGS_VARIABLE)
    if not chosen:
        return []
    if not Path(chosen).is_file():
        raise UsageError(
            f"{SETTINGS_VARIABLE} names a file that is not there: {chosen}",
            remedies=[f"point {SETTINGS_VARIABLE} at an ivysettings.xml, or unset it"],
            params={"file": chosen},
        )
    return ["-settings", chosen]
