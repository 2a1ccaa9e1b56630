"""A real OpenSearch server of this machine, from locked jars: one node that keeps its data in a folder."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

from headrace.errors import JarDownloadError, JavaUnsuitableError
from headrace.runtime.fetch import _fetch
from headrace.runtime.jars import Coordinate, Jar, JarCache, Java, _find_java, find_java
from headrace.runtime.places import cache_folder
from headrace.runtime.processes import end, start_bound
from waiting import until

VERSION = "3.4.0"
_FIRST_JAVA = 21
_START_S = 180.0
"""It takes 5 s of processor time."""
_REQUEST_S = 60.0

_MODULES = {
    "transport-netty4": "org.opensearch.transport.Netty4ModulePlugin",
    "reindex": "org.opensearch.index.reindex.ReindexModulePlugin",
}
"""OpenSearch's HTTP server, and changes by a query; their classes."""

_JVM_OPTIONS = (
    *("-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
    "--enable-native-access=ALL-UNNAMED",
    # OpenSearch refuses to run as root, and CI does. Without JNA's library it cannot ask for its user.
    *("-Djna.nosys=true", "-Djna.noclasspath=true"),
)
_SETTINGS = {
    "discovery.type": "single-node",
    "network.host": "127.0.0.1",
    "transport.port": "0",
    "node.processors": "2",
    "node.portsfile": "true",
    "cluster.routing.allocation.disk.threshold_enabled": "false",
}
_LOGGING = """
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d{ISO8601}][%-5p][%c{1.}] %m%n
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
"""
_DESCRIPTOR = """
name={name}
description={name}
version={version}
opensearch.version={version}
java.version={java}
classname={main}
"""
_NUMBERS = itertools.count()


class OpenSearchServer:
    """A node that listens to this machine only, without logins.

    Args:
        folder: Its data, its log and its settings.
    """

    def __init__(self, folder: Path) -> None:
        self.log = folder / "opensearch.log"
        self._folder = folder
        self._ports = folder / "logs" / "http.ports"
        self._port = "0"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start the node with the data of its folder; after a stop, at the same address."""
        assert missing_reason() is None, missing_reason()
        java, jars = _choose_java(), _ensure_jars()
        self._write_home(jars)
        self._ports.unlink(missing_ok=True)
        settings = {**_SETTINGS, "http.port": self._port, **self._folders()}
        command = [
            *(str(java.executable), *_JVM_OPTIONS, f"-Dopensearch.path.home={self._folder}"),
            *(f"-Dopensearch.path.conf={self._folder / 'config'}", "-Dopensearch.distribution.type=tar"),
            *("-cp", os.pathsep.join(map(str, jars["server"])), "org.opensearch.bootstrap.OpenSearch"),
            *(f"-E{name}={value}" for name, value in settings.items()),
        ]
        self._process = process = start_bound(command, self.log)
        until(lambda: self._ports.exists() or process.poll() is not None, "OpenSearch listens", _START_S)
        assert self._ports.exists(), self.log.read_text()[-5000:]
        self._port = self._ports.read_text().split()[0].rpartition(":")[2]
        until(self._is_ready, "OpenSearch knows its indices", _START_S)

    def stop(self) -> None:
        """Kill the node; what it has confirmed is in its folder."""
        if self._process is not None:
            end(self._process, 0)

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request that shares no code with Headrace's sink; returns the answer of the server.

        Args:
            body: A value for JSON; for ``_bulk``, a list with a value for each line.
        """
        status, answer = self.try_call(method, path, body)
        assert status < 300, (status, answer)
        return answer

    def try_call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Send a request; returns the status and the answer, also of a refused request."""
        lines = body if isinstance(body, list) else [] if body is None else [body]
        data = "".join(json.dumps(line) + "\n" for line in lines).encode() or None
        headers = {"Content-Type": "application/json"}
        request = Request(f"{self.url}/{path}", data, headers, method=method)
        try:
            with urlopen(request, timeout=_REQUEST_S) as response:
                return response.status, _parse(response.read())
        except HTTPError as error:
            with error:
                return error.code, _parse(error.read())

    def documents(self, index: str) -> dict[str, Any]:
        """Returns what a search finds in an index or an alias now: the documents by their ids."""
        name = quote(index, safe="*,")
        self.call("POST", f"{name}/_refresh")
        found = self.call("POST", f"{name}/_search", {"size": 10_000, "track_total_hits": True})
        hits = found["hits"]["hits"]
        assert found["hits"]["total"]["value"] == len(hits), "more documents than one answer can have"
        return {hit["_id"]: hit["_source"] for hit in hits}

    def new_name(self) -> str:
        """Returns the name of an index of one test."""
        return f"shop-{next(_NUMBERS)}"

    def _is_ready(self) -> bool:
        """Whether the node has read its state, and the primary shard of each index is there."""
        status, health = self.try_call("GET", "_cluster/health?wait_for_status=yellow&timeout=1s")
        return status == 200 and health["status"] in ("yellow", "green")

    def _folders(self) -> dict[str, str]:
        return {"path.data": str(self._folder / "data"), "path.logs": str(self._ports.parent)}

    def _write_home(self, jars: Mapping[str, tuple[Path, ...]]) -> None:
        """Make the folders of a distribution, with links to the jars of its modules."""
        self._ports.parent.mkdir(parents=True, exist_ok=True)
        (self._folder / "config").mkdir(exist_ok=True)
        (self._folder / "config" / "log4j2.properties").write_text(_LOGGING)
        for name, main in _MODULES.items():
            module = self._folder / "modules" / name
            if module.exists():
                continue
            module.mkdir(parents=True)
            text = _DESCRIPTOR.format(name=name, version=VERSION, java=_FIRST_JAVA, main=main)
            (module / "plugin-descriptor.properties").write_text(text)
            for jar in jars[name]:
                (module / jar.name).symlink_to(jar)


@contextmanager
def running_opensearch(folder: Path) -> Iterator[OpenSearchServer]:
    """Start a server whose files are in a folder, and stop it at the end."""
    server = OpenSearchServer(folder)
    try:
        server.start()
        yield server
    finally:
        server.stop()


@cache
def missing_reason() -> str | None:
    """Returns why this machine cannot have the server, or ``None``; downloads its jars, once."""
    try:
        java = _choose_java()
        if java.major < _FIRST_JAVA:
            return f"OpenSearch {VERSION} needs Java {_FIRST_JAVA}, and this machine has {java.version}"
        _ensure_jars()
    except (JarDownloadError, JavaUnsuitableError) as error:
        return f"OpenSearch {VERSION} cannot be had: {str(error).splitlines()[0]}"
    return None


def _choose_java() -> Java:
    """Returns the Java of Headrace, or, if it is too old, that of the wheel."""
    java = find_java()
    return java if java.major >= _FIRST_JAVA else _find_java(None)


@cache
def _ensure_jars() -> dict[str, tuple[Path, ...]]:
    """Returns the jars of the server and of each module, in the cache of the user."""
    lock = json.loads((Path(__file__).parent / "opensearch.lock.json").read_text())
    sets = {
        name: tuple(
            Jar(Coordinate.parse(entry["coordinate"]), entry["size"], entry["sha256"]) for entry in entries
        )
        for name, entries in lock["sets"].items()
    }
    every = [jar for jars in sets.values() for jar in jars]
    store = JarCache(cache_folder() / "tests" / f"opensearch-{VERSION}")
    if store.missing(every):
        with store.locked():
            needed = store.recheck(store.missing(every))
            if needed:
                store.remove_leftovers()
                _fetch(store, needed, lambda progress: None)
    return {name: tuple(map(store.path, jars)) for name, jars in sets.items()}


def _parse(answer: bytes) -> Any:
    return json.loads(answer) if answer else None
