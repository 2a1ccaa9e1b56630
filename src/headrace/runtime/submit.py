"""The `spark-submit` command for a run: its settings, its jars, and the Python of driver and executors."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Literal

import psutil

import headrace
from headrace.errors import SourceLocation, SpecInvalidError
from headrace.model.project import ProjectSettings
from headrace.model.secrets import is_secret_key
from headrace.runtime.defaults import build_settings, is_local
from headrace.runtime.fetch import ensure_jars
from headrace.runtime.jars import find_java, locked_jars
from headrace.runtime.jvm import build_java_command, choose_heap
from headrace.runtime.places import cache_folder, logs_folder
from headrace.runtime.storage_support import NO_STORAGE, StorageSupport

PYTHON = "spark.pyspark.python"
_FOLDER = "headrace-packages"  # where an executor unpacks the archive, in its working directory
_PATH = "spark.executorEnv.PYTHONPATH"
_ON_EXECUTORS = ("pyspark", "py4j")
"""Packages that each machine with Spark has."""


def python_of(settings: Mapping[str, str]) -> str:
    """Returns the Python of the workers: by default this one, not the `python3` in PATH."""
    return settings.get(PYTHON) or os.environ.get("PYSPARK_PYTHON") or sys.executable


def spark_settings(settings: ProjectSettings) -> dict[str, str]:
    """Returns the Spark settings of a spec, with the settings that send its packages to the executors."""
    conf = {key: value for key, value in settings.configuration.items() if key.startswith("spark.")}
    if settings.master is None or is_local(settings.master):
        return conf
    return conf | package_settings(settings.cluster.packages, conf, settings.cluster.location)


def package_settings(
    names: Sequence[str], conf: Mapping[str, str], location: SourceLocation | None = None
) -> dict[str, str]:
    """Returns the Spark settings that send packages to the executors; packs them if that was not done."""
    if not names:
        return {}
    archive = pack(find_distributions(names, location))
    archives = [*filter(None, [conf.get("spark.archives")]), f"{archive}#{_FOLDER}"]
    paths = [_FOLDER, *filter(None, [conf.get(_PATH)])]
    return {"spark.archives": ",".join(archives), _PATH: os.pathsep.join(paths)}


def find_distributions(
    names: Sequence[str], location: SourceLocation | None = None
) -> tuple[Distribution, ...]:
    """Returns the packages and the installed packages that they need, without those of Spark."""
    found: dict[str, Distribution] = {}
    waiting = [(name, True) for name in names]
    while waiting:
        name, is_named = waiting.pop(0)
        key = re.sub(r"[-_.]+", "-", name).lower()
        if key in found or (key in _ON_EXECUTORS and not is_named):
            continue
        try:
            one = distribution(name)
        except PackageNotFoundError:
            # A package can need others on other platforms only.
            if is_named:
                raise _not_sent(name, "it is not installed here", f"pip install {name}", location) from None
            continue
        if one.files is None or _is_editable(one):
            problem = "its installation here does not list its files"
            raise _not_sent(name, problem, f"install it without -e:   pip install {name}", location)
        found[key] = one
        waiting += [(needed, False) for needed in _needed(one)]
    return tuple(found[key] for key in sorted(found))


def pack(distributions: Iterable[Distribution]) -> Path:
    """Returns a zip archive of packages in the cache. The name has a hash of their files, so each archive
    is made once."""
    chosen = tuple(distributions)
    # A record has the hash of each file: a version can be installed again with other code.
    packages = [(one.name, one.version, one.read_text("RECORD")) for one in chosen]
    parts = [platform.python_version(), platform.machine(), packages]
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
    archive = cache_folder() / "packages" / f"packages-{key}.zip"
    if not archive.exists():
        archive.parent.mkdir(parents=True, exist_ok=True)
        unfinished = archive.with_suffix(f".{os.getpid()}")
        _write(unfinished, chosen)
        unfinished.replace(archive)
    return archive


def _write(archive: Path, distributions: Iterable[Distribution]) -> None:
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as target:
        for one in distributions:
            for file in one.files or ():
                path = Path(str(one.locate_file(file)))
                # Scripts are outside of the packages' folder.
                if ".." not in file.parts and "__pycache__" not in file.parts and path.is_file():
                    target.write(path, file.as_posix())


def _needed(one: Distribution) -> Iterator[str]:
    for requirement in one.requires or ():
        text, _, condition = requirement.partition(";")
        if "extra" not in condition and (name := re.match(r"[A-Za-z0-9][\w.-]*", text)):
            yield name[0]


def _is_editable(one: Distribution) -> bool:
    origin = json.loads(one.read_text("direct_url.json") or "{}")
    return bool(origin.get("dir_info", {}).get("editable"))


def _not_sent(name: str, problem: str, remedy: str, location: SourceLocation | None) -> SpecInvalidError:
    return SpecInvalidError(
        f"`cluster.packages` names `{name}`, which cannot be sent to the executors: {problem}",
        location=location,
        remedies=[remedy],
        params={"key": "cluster.packages", "package": name},
    )


DeployMode = Literal["client", "cluster"]

IMAGE_JARS = "/opt/headrace/jars"
IMAGE_MAIN = "/opt/headrace/main.py"
"""Files of the image that `headrace deploy kubernetes` describes."""


@dataclass(frozen=True)
class Submission:
    options: tuple[str, ...]  # of spark-submit
    settings: Mapping[str, str]  # without secrets
    secret: Mapping[str, str]  # settings that no command line may show
    heap: str  # of the driver
    main: str
    arguments: tuple[str, ...]  # of Headrace

    def command(self, properties: Path | None = None) -> list[str]:
        """The arguments of `spark-submit`. `properties`: the file with the secret settings."""
        file = [] if properties is None else ["--properties-file", str(properties), "--load-spark-defaults"]
        conf = [word for key, value in self.settings.items() for word in ("--conf", f"{key}={value}")]
        return [*self.options, *file, *conf, self.main, *self.arguments]


def build_submission(
    name: str,
    master: str,
    mode: DeployMode,
    conf: Mapping[str, str],
    *,
    memory: str | None,
    arguments: Sequence[str],
    archive: Path | None = None,
    storage: StorageSupport = NO_STORAGE,
) -> Submission:
    """`archive`: the pipeline's folder, which YARN unpacks as `pipeline` beside the driver."""
    conf = {**conf, **storage.settings}
    in_image = mode == "cluster" and master.startswith("k8s://")
    if in_image:
        names = [jar.file_name for jar in locked_jars("spark", *storage.jar_sets)]
        names += [jar.name for jar in storage.own_jars]
        jars = [f"local://{IMAGE_JARS}/{name}" for name in names]
        main = f"local://{IMAGE_MAIN}"
    else:
        jars = [str(path) for path in (*ensure_jars("spark"), *storage.ensure_jars())]
        main = str(Path(headrace.__file__).with_name("__main__.py"))
    settings = build_settings(name, master, Path("/"), conf)
    for folder in ("spark.local.dir", "spark.sql.warehouse.dir"):
        if is_local(master) and folder not in conf:
            del settings[folder]
    jars += filter(None, [settings.get("spark.jars")])
    settings["spark.jars"] = ",".join(jars)
    if mode == "client":
        settings.setdefault("spark.pyspark.driver.python", sys.executable)
        settings.setdefault(PYTHON, python_of(conf))
    if archive is not None:
        archives = filter(None, [settings.get("spark.archives"), f"{archive}#pipeline"])
        settings["spark.archives"] = ",".join(archives)
    options = ["--master", settings.pop("spark.master"), "--deploy-mode", mode]
    options += ["--name", settings.pop("spark.app.name")]
    heap = memory or settings.pop("spark.driver.memory", None) or choose_heap()
    options += ["--driver-memory", heap]
    secret = {key: settings.pop(key) for key in [*settings] if is_secret_key(key)}
    return Submission(tuple(options), settings, secret, heap, main, tuple(arguments))


def submit(submission: Submission) -> int:
    """Runs the command, and returns its exit code. Uses the Spark of `SPARK_HOME`, else that of PySpark."""
    with _properties(submission.secret) as properties:
        process = subprocess.Popen([*_spark_submit(submission.heap), *submission.command(properties)])
        before = signal.signal(signal.SIGTERM, lambda *_: _terminate(process))
        try:
            while True:
                # The driver gets Ctrl-C, too, and stops between two batches.
                with suppress(KeyboardInterrupt):
                    return process.wait()
        finally:
            signal.signal(signal.SIGTERM, before)


def _spark_submit(heap: str) -> list[str]:
    if home := os.environ.get("SPARK_HOME"):
        return [str(Path(home) / "bin" / "spark-submit")]
    logs_folder().mkdir(parents=True, exist_ok=True)
    log = logs_folder() / f"submit-{os.getpid()}.log"
    java = build_java_command(find_java(), [], heap=heap, log_file=log)
    return [*java, "org.apache.spark.deploy.SparkSubmit"]


def _terminate(process: subprocess.Popen[bytes]) -> None:
    """Ask the driver to stop. In client mode it is a child of Spark's JVM, which would not pass it on."""
    with suppress(psutil.Error):
        drivers = psutil.Process(process.pid).children()
        for one in drivers or [psutil.Process(process.pid)]:
            one.terminate()


@contextmanager
def _properties(settings: Mapping[str, str]) -> Iterator[Path | None]:
    if not settings:
        yield None
        return
    with tempfile.NamedTemporaryFile(
        "w", prefix="headrace-submit-", suffix=".properties", encoding="utf-8"
    ) as file:
        # Readable by the user alone.
        file.writelines(f"{key}={_escaped(value)}\n" for key, value in settings.items())
        file.flush()
        yield Path(file.name)


def _escaped(value: str) -> str:
    """A value of a Java properties file; Spark reads it as UTF-8."""
    return "".join(f"\\u{ord(one):04x}" if one in "\\ \n\r\t\f" else one for one in value)
