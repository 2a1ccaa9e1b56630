"""Checks whether a pipeline can run on this machine; starts no JVM."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import psutil

from headrace.errors import STORE_FAILURES, HeadraceError
from headrace.model.project import BrokerChoice, ProjectSettings
from headrace.model.secrets import REDACTED, is_secret_key
from headrace.runtime import aot
from headrace.runtime.broker import Broker
from headrace.runtime.engine.client import find_engines
from headrace.runtime.engine.record import VARIABLE, is_engine_on, load_records
from headrace.runtime.jars import JarCache, find_bundle, find_java, locked_jars
from headrace.runtime.jvm import choose_heap
from headrace.runtime.kafka_client import ClientErrors, connection_errors
from headrace.runtime.places import BROKER_VARIABLE, CACHE_VARIABLE, OTHER_BROKER, broker_folder, cache_folder

SPARK_VERSION = "4.2.0"
DELTA_VERSION = "4.4.0"

_ANSWER_S = 5.0
_DISK_NEEDED_GB = 2
_MEMORY_NEEDED_GB = 3.0

State = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Check:
    name: str
    state: State  # with ``fail`` a run would not start
    text: str
    remedy: str | None = None


def run_checks(project: ProjectSettings | None = None) -> list[Check]:
    checks = [_java(), _certificates(), _packages(), _jars(), _start_cache(), _memory(), _engine()]
    checks.append(_folder("cache folder", cache_folder(), f"set {CACHE_VARIABLE} to a folder of yours"))
    if project is None:
        return [*checks, _broker(BrokerChoice(broker_folder(), "outside"), needed=False)]
    choice = project.broker or BrokerChoice(broker_folder(), "outside")
    kafka = _broker(choice, needed=True) if project.kafka.is_embedded else _cluster(project)
    return [*checks, kafka, *_expanded(project), _storage(project)]


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
            "this machine has no bundle of certificate authorities; Java uses its own list",
            "if a proxy has its own authority, set SSL_CERT_FILE to a bundle that contains it",
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
        return Check("spark", "warn", f"{text}; tested with {needed}", f"python -m pip install {needed}")
    return Check("spark", "ok", text)


def _jars() -> Check:
    cache, jars = JarCache(), locked_jars("spark", "broker")
    wrong = cache.wrong(jars)
    if not wrong:
        size = sum(jar.size for jar in jars) / 1e6
        return Check(
            "jars", "ok", f"{len(jars)} jars, {size:.0f} MB, with the expected checksums, in {cache.folder}"
        )
    changed = [jar for jar in wrong if cache.path(jar).exists()]
    if changed:
        names = ", ".join(str(jar.coordinate) for jar in changed[:3])
        # A start compares only sizes and times.
        cache.recheck(changed)
        text = f"{len(changed)} jars did not have the expected checksum and were removed: {names}"
        return Check("jars", "warn", text, "download them:   headrace broker start")
    text = f"{len(wrong)} of {len(jars)} jars are missing"
    return Check("jars", "warn", text, "download them:   headrace broker start")


def _start_cache() -> Check:
    try:
        java, jars = find_java(), [JarCache().path(jar) for jar in locked_jars("spark")]
        if java.major < aot.FIRST_JAVA:
            text = (
                f"Java {java.version} does not support it; with Java {aot.FIRST_JAVA}, Spark starts in half "
                "the time"
            )
            return Check("JVM start-up cache", "warn", text, "unset JAVA_HOME to use the Java of the wheel")
        found = aot.find_cache(java, jars)
    except (HeadraceError, OSError):
        found = None
    if found is None:
        return Check("JVM start-up cache", "ok", "missing; the first run creates it in the background")
    return Check("JVM start-up cache", "ok", f"{found} ({found.stat().st_size / 1e6:.0f} MB)")


def _memory() -> Check:
    memory = psutil.virtual_memory()
    heap = choose_heap()
    text = f"{memory.available / 1e9:.1f} of {memory.total / 1e9:.1f} GB free; heap of Spark's JVM: {heap}"
    if memory.available < _MEMORY_NEEDED_GB * 1e9:
        remedy = "end other programs, or reduce `runtime: {memory: ..}` in headrace.yml"
        return Check("memory", "warn", text, remedy)
    return Check("memory", "ok", text)


def _engine() -> Check:
    if not is_engine_on():
        return Check("engine", "ok", f"off; each command starts a JVM ({VARIABLE}, CI or spark-submit)")
    running = find_engines()
    hanging = sum(1 for _ in load_records()) - len(running)
    if hanging:
        return Check("engine", "warn", f"engines that do not answer: {hanging}", "headrace engine stop")
    if not running:
        return Check("engine", "ok", "not running; the next command that needs Spark starts it")
    memory = sum(one["memory_mb"] for one in running)
    text = ", ".join(f"process {one['pid']} in {one['folder']}" for one in running)
    return Check("engine", "ok", f"{text}, {memory} MB")


def _folder(name: str, folder: Path, remedy: str) -> Check:
    existing = next(one for one in (folder, *folder.parents) if one.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        return Check(name, "fail", f"{folder} cannot be written: {error.strerror}", remedy)
    free = shutil.disk_usage(existing).free / 1e9
    text = f"{folder}, {free:.1f} GB free"
    if free < _DISK_NEEDED_GB:
        return Check(name, "warn", text, "free space on the disk")
    return Check(name, "ok", text)


def _broker(choice: BrokerChoice, *, needed: bool) -> Check:
    status = Broker(choice.folder).status()
    which = f"{choice.describe()}, {choice.folder}"
    match status.state:
        case "running":
            text = f"{status.bootstrap}, process {status.pid}, {status.memory_mb} MB; {which}"
            return Check("broker", "ok", text)
        case "starting":
            text = f"process {status.pid} does not listen yet; {which}; log: {status.log_file}"
            return Check("broker", "warn", text, "headrace broker status")
        case _ if needed:
            remedy = (
                f"name another in the spec:   runtime: {{broker: {OTHER_BROKER}}}, or set {BROKER_VARIABLE}"
            )
            found = _folder("broker", choice.folder, remedy)
            return replace(found, text=f"stopped; a run starts it; {which}") if found.state == "ok" else found
        case _:
            return Check("broker", "ok", f"the embedded broker is stopped; {which}")


def _cluster(project: ProjectSettings) -> Check:
    """Checks whether the pipeline's Kafka cluster answers and accepts this client."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    servers = project.kafka.bootstrap_servers
    reasons = connection_errors(servers, _ANSWER_S)
    if reasons:
        remedy = f"check `kafka: {{bootstrap.servers: ..}}` in {project.file}, and the network"
        return Check("kafka", "fail", f"cannot connect to {'; '.join(reasons)}", remedy)
    client_errors = ClientErrors(project.kafka)
    try:
        admin = client_errors.open(AdminClient)
        client_errors.wait(admin.describe_cluster(request_timeout=_ANSWER_S), admin, _ANSWER_S)
        listed = admin.list_topics(timeout=_ANSWER_S)
    except HeadraceError as error:
        return _refused(error)
    except (KafkaException, TimeoutError) as error:
        if (fault := client_errors.explain(error)) is not None:
            return _refused(fault)
        remedy = f"check the connection's settings under `kafka:` in {project.file}"
        return Check("kafka", "fail", f"{servers} does not answer: {error}", remedy)
    topics = [name for name in listed.topics if not name.startswith("__")]
    return Check("kafka", "ok", f"{servers}: brokers: {len(listed.brokers)}, topics: {len(topics)}")


def _expanded(project: ProjectSettings) -> list[Check]:
    """The settings of both clients that follow from the connection of the spec, without their secrets."""
    kafka = project.kafka
    if not kafka.written:
        return []
    checks = []
    for client, found in {"spark": kafka.for_spark(), "librdkafka": kafka.for_librdkafka()}.items():
        # The value of `oauth_cb` is a function.
        texts = {key: value for key, value in found.items() if isinstance(value, str)}
        shown = (f"{key}: {REDACTED if is_secret_key(key) else value}" for key, value in texts.items())
        checks.append(Check(f"kafka for {client}", "ok", ", ".join(shown)))
    return checks


def _refused(error: HeadraceError) -> Check:
    location = f" ({error.location})" if error.location is not None else ""
    return Check("kafka", "fail", f"[{error.code}] {error.summary}{location}", error.remedies[0])


def _storage(project: ProjectSettings) -> Check:
    stored = project.storage.root
    if not stored.is_local:
        remedy = f"change `storage` in {project.file}"
        try:
            broken = stored.files.find_unsafe(stored.path)
        except HeadraceError as error:
            # Without the advice to run this command.
            remedy = error.remedies[0].removesuffix(":   headrace doctor")
            answer = error.facts[-1:] if isinstance(error, STORE_FAILURES) else ()
            text = "; ".join([error.summary, *answer])
            return Check("storage", "fail", f"[{error.code}] {text}", remedy)
        except OSError as error:
            return Check("storage", "fail", f"{stored} cannot be read: {error}", remedy)
        if broken is not None:
            return Check("storage", "fail", f"{stored} is not safe for tables: {broken}", remedy)
        return Check("storage", "ok", f"{stored}; its conditional writes hold")
    root = Path(stored.path)
    if root.exists() and not root.is_dir():
        return Check("storage", "fail", f"{root} is not a folder", f"change `storage` in {project.file}")
    if root.is_dir() and not os.access(root, os.W_OK | os.X_OK):
        return Check("storage", "fail", f"{root} cannot be written", f"change `storage` in {project.file}")
    return _folder("storage", root, f"change `storage` in {project.file}")
