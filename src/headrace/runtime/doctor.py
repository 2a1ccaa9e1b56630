"""What a machine lacks before a pipeline runs on it, and what to do about it; starts no JVM."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import psutil

from headrace.errors import HeadraceError
from headrace.model.project import ProjectSettings
from headrace.runtime import aot
from headrace.runtime.broker import Broker
from headrace.runtime.jars import JarCache, locked_jars
from headrace.runtime.java import find_java
from headrace.runtime.jvm import choose_heap
from headrace.runtime.kafka_client import ClientErrors
from headrace.runtime.network import connection_errors
from headrace.runtime.places import CACHE_VARIABLE, cache_folder
from headrace.runtime.truststore import find_bundle

SPARK_VERSION = "4.2.0"
DELTA_VERSION = "4.4.0"

_ANSWER_S = 5.0
_DISK_NEEDED_GB = 2
_MEMORY_NEEDED_GB = 3.0

State = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Args:
        name: What it is, in a word or two.
        state: ``warn`` is worth knowing; with ``fail`` a run would not start.
        text: What was found.
        remedy: What to do about it; ``None`` where there is nothing to do.
    """

    name: str
    state: State
    text: str
    remedy: str | None = None


def run_checks(project: ProjectSettings | None = None) -> list[Check]:
    """Look at everything that a run needs.

    Args:
        project: The pipeline whose storage and broker are looked at too.
    """
    checks = [_java(), _certificates(), _packages(), _jars(), _start_cache(), _memory()]
    checks += [
        _folder("cache folder", cache_folder(), f"set {CACHE_VARIABLE} to a folder of yours"),
        _ports(),
    ]
    if project is None or project.kafka.is_embedded:
        checks.append(_broker(needed=project is not None))
    else:
        checks.append(_cluster(project))
    if project is not None:
        checks.append(_storage(project))
    return checks


def _java() -> Check:
    try:
        java = find_java()
    except HeadraceError as error:
        return Check("java", "fail", error.summary, error.remedies[0])
    found = f"{java.version} from {'JAVA_HOME' if java.origin == 'JAVA_HOME' else 'the wheel'}, {java.home}"
    if java.passed_over:
        return Check(
            "java", "warn", f"{found}; {java.passed_over}", "set JAVA_HOME to Java 17 or newer, or unset it"
        )
    return Check("java", "ok", found)


def _certificates() -> Check:
    bundle = find_bundle()
    if bundle is None:
        return Check(
            "certificates",
            "warn",
            "this machine has no bundle of certificate authorities; Java uses its own",
            "behind a proxy with a certificate of its own, set SSL_CERT_FILE to a bundle that holds it",
        )
    return Check("certificates", "ok", str(bundle))


def _packages() -> Check:
    wanted = {"pyspark": SPARK_VERSION, "delta-spark": DELTA_VERSION}
    found: dict[str, str | None] = {}
    for name in wanted:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    text = ", ".join(f"{name} {number or 'is missing'}" for name, number in found.items())
    if None in found.values():
        return Check("spark", "fail", text, "python -m pip install headrace")
    if found != wanted:
        needed = " ".join(f"{name}=={number}" for name, number in wanted.items())
        return Check("spark", "warn", f"{text}; tried with {needed}", f"python -m pip install {needed}")
    return Check("spark", "ok", text)


def _jars() -> Check:
    cache, jars = JarCache(), locked_jars("spark", "broker")
    wrong = cache.wrong(jars)
    if not wrong:
        size = sum(jar.size for jar in jars) / 1e6
        return Check(
            "jars", "ok", f"{len(jars)} jars, {size:.0f} MB, each with the locked sum, in {cache.folder}"
        )
    changed = [jar for jar in wrong if cache.path(jar).exists()]
    if changed:
        names = ", ".join(str(jar.coordinate) for jar in changed[:3])
        # The next start compares size and time only, so a jar that is known to be wrong has to go.
        cache.recheck(changed)
        text = f"{len(changed)} jars were not the locked ones and have been removed: {names}"
        return Check("jars", "warn", text, "headrace broker start     (whatever needs jars fetches them)")
    text = f"{len(wrong)} of {len(jars)} jars are not here yet"
    return Check("jars", "warn", text, "headrace broker start     (whatever needs jars fetches them)")


def _start_cache() -> Check:
    try:
        java, jars = find_java(), [JarCache().path(jar) for jar in locked_jars("spark")]
        if java.major < aot.FIRST_JAVA:
            text = f"Java {java.version} makes none; Java {aot.FIRST_JAVA} starts Spark in half the time"
            return Check("quick start", "warn", text, "unset JAVA_HOME, and the wheel's Java is used")
        found = aot.find_cache(java, jars)
    except (HeadraceError, OSError):
        found = None
    if found is None:
        return Check("quick start", "ok", "not made yet; the first run makes it in the background")
    return Check("quick start", "ok", f"{found} ({found.stat().st_size / 1e6:.0f} MB)")


def _memory() -> Check:
    memory = psutil.virtual_memory()
    heap = choose_heap()
    text = f"{memory.available / 1e9:.1f} of {memory.total / 1e9:.1f} GB free; Spark's heap is {heap}"
    if memory.available < _MEMORY_NEEDED_GB * 1e9:
        remedy = "end other programs, or set `runtime: {memory: ..}` in headrace.yml to less"
        return Check("memory", "warn", text, remedy)
    return Check("memory", "ok", text)


def _folder(name: str, folder: Path, remedy: str) -> Check:
    place = next(_existing(folder))
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        return Check(name, "fail", f"{folder} cannot be written: {error.strerror}", remedy)
    free = shutil.disk_usage(place).free / 1e9
    text = f"{folder}, {free:.1f} GB free"
    if free < _DISK_NEEDED_GB:
        return Check(name, "warn", text, "make room on the disk")
    return Check(name, "ok", text)


def _existing(folder: Path) -> Iterator[Path]:
    """The folder or the nearest one above it that is there."""
    yield from (place for place in (folder, *folder.parents) if place.exists())


def _ports() -> Check:
    try:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
    except OSError as error:
        text = f"no port can be opened on 127.0.0.1: {error.strerror}"
        return Check("ports", "fail", text, "allow programs to listen on 127.0.0.1")
    return Check("ports", "ok", "127.0.0.1 has free ones")


def _broker(*, needed: bool) -> Check:
    status = Broker().status()
    match status.state:
        case "running":
            return Check("broker", "ok", f"{status.bootstrap}, process {status.pid}, {status.memory_mb} MB")
        case "starting":
            text = f"process {status.pid} is there and does not listen yet; log: {status.log_file}"
            return Check("broker", "warn", text, "headrace broker status")
        case _:
            text = "the embedded broker is stopped" + ("; a run starts it" if needed else "")
            return Check("broker", "ok", text)


def _cluster(project: ProjectSettings) -> Check:
    """A Kafka cluster of somebody else's: whether it answers, and lets this client in."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    servers = project.kafka.bootstrap_servers
    reasons = connection_errors(servers, _ANSWER_S)
    if reasons:
        remedy = f"check `kafka: {{bootstrap.servers: ..}}` in {project.file}, and the network"
        return Check("kafka", "fail", f"nobody answers at {'; '.join(reasons)}", remedy)
    client_errors = ClientErrors(project.kafka)
    try:
        admin = client_errors.open(AdminClient)
        client_errors.wait(admin.describe_cluster(request_timeout=_ANSWER_S), admin, _ANSWER_S)
        listed = admin.list_topics(timeout=_ANSWER_S)
    except HeadraceError as error:
        return _turned_away(error)
    except (KafkaException, TimeoutError) as error:
        if (fault := client_errors.explain(error)) is not None:
            return _turned_away(fault)
        remedy = f"check the connection's settings under `kafka:` in {project.file}"
        return Check("kafka", "fail", f"{servers} gives no answer: {error}", remedy)
    topics = [name for name in listed.topics if not name.startswith("__")]
    return Check("kafka", "ok", f"{servers}: brokers: {len(listed.brokers)}, topics: {len(topics)}")


def _turned_away(error: HeadraceError) -> Check:
    place = f" ({error.location})" if error.location is not None else ""
    return Check("kafka", "fail", f"[{error.code}] {error.summary}{place}", error.remedies[0])


def _storage(project: ProjectSettings) -> Check:
    root = project.storage.root.local_path
    if root.exists() and not root.is_dir():
        return Check("storage", "fail", f"{root} is not a folder", f"change `storage` in {project.file}")
    if root.is_dir() and not os.access(root, os.W_OK | os.X_OK):
        return Check("storage", "fail", f"{root} cannot be written", f"change `storage` in {project.file}")
    return _folder("storage", root, f"change `storage` in {project.file}")
