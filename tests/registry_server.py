"""A real schema registry with Confluent's API: Apicurio's, fetched once and checked by its sum."""

from __future__ import annotations

import fcntl
import hashlib
import json
import re
import subprocess
import tarfile
import tempfile
from pathlib import Path
from urllib.request import Request, urlopen

from headrace.runtime.jars import _ivy_jar, _proxy_options, _settings, find_java
from headrace.runtime.places import cache_folder
from headrace.runtime.processes import end, start_bound
from waiting import until

_VERSION = "3.3.3"
_SHA256 = "8bc6751c76d963734224b01d5e7f84ccb3cb61c87d3bd77c36c35f10a5cbed63"
_MODULE = f"""
<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="headrace" module="registry"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    <dependency org="io.apicurio" name="apicurio-registry-app" rev="{_VERSION}" transitive="false"
                conf="default->master(default)">
      <artifact name="apicurio-registry-app" type="tar.gz" ext="tar.gz" m:classifier="all"/>
    </dependency>
  </dependencies>
</ivy-module>
"""
_START_S = 90.0
_LISTENING = re.compile(r"Listening on: http://127\.0\.0\.1:(\d+)")


class RegistryServer:
    """A registry that keeps its schemas in memory, on a free port of this machine.

    Args:
        folder: Its log.
    """

    def __init__(self, folder: Path) -> None:
        self._log = folder / "registry.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def start(self) -> None:
        java = find_java()
        command = [
            *(str(java.executable), "-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
            *("-Dquarkus.http.host=127.0.0.1", "-Dquarkus.http.port=0"),
            *("-Dquarkus.management.host=127.0.0.1", "-Dquarkus.management.port=0"),
            *("-jar", str(_distribution() / "quarkus-run.jar")),
        ]
        self._process = start_bound(command, self._log)
        process = self._process
        until(lambda: self._port() != "" or process.poll() is not None, "the registry listens", _START_S)
        assert self._port(), self._log.read_text()
        self.url = f"http://127.0.0.1:{self._port()}/apis/ccompat/v7"

    def _port(self) -> str:
        found = _LISTENING.search(self._log.read_text())
        return found[1] if found else ""

    def stop(self) -> None:
        if self._process is not None:
            end(self._process, 10.0)

    def register(self, subject: str, schema: str, kind: str = "AVRO") -> int:
        """Register the next version of a subject; returns its id."""
        body = json.dumps({"schema": schema, "schemaType": kind}).encode()
        headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
        request = Request(f"{self.url}/subjects/{subject}/versions", body, headers)
        with urlopen(request, timeout=30) as answer:
            return int(json.load(answer)["id"])

    def restrict(self, subject: str, rule: str) -> None:
        """Let a subject take only versions that are compatible with those before."""
        body = json.dumps({"compatibility": rule}).encode()
        headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
        urlopen(Request(f"{self.url}/config/{subject}", body, headers, method="PUT"), timeout=30).close()


def _distribution() -> Path:
    """The unpacked distribution, in the cache of jars."""
    parent = cache_folder() / "tests"
    parent.mkdir(parents=True, exist_ok=True)
    folder = parent / f"apicurio-registry-{_VERSION}"
    with (parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=parent) as name:
                archive = _fetch(Path(name))
                assert hashlib.sha256(archive.read_bytes()).hexdigest() == _SHA256
                with tarfile.open(archive) as packed:
                    # The first releases of Python 3.11 have no filters.
                    packed.extraction_filter = getattr(tarfile, "data_filter", None)
                    packed.extractall(Path(name) / "app")
                (Path(name) / "app").rename(folder)
    return folder


def _fetch(folder: Path) -> Path:
    (folder / "ivy.xml").write_text(_MODULE.strip())
    java = find_java()
    command = [
        *(str(java.executable), *java.trust_options(), *_proxy_options(), "-Divy.checksums="),
        *("-jar", str(_ivy_jar()), *_settings(), "-ivy", str(folder / "ivy.xml")),
        *("-cache", str(folder / "cache"), "-confs", "default"),
        *("-retrieve", str(folder / "[artifact]-[revision].[ext]")),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    archive = folder / f"apicurio-registry-app-{_VERSION}.tar.gz"
    assert archive.exists(), done.stdout[-2000:]
    return archive
