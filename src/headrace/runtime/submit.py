"""The `spark-submit` command for a run: its settings, its jars, and the Python of driver and executors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

import headrace
from headrace.model.secrets import is_secret_key
from headrace.runtime.defaults import build_settings, is_local
from headrace.runtime.fetch import ensure_jars
from headrace.runtime.jars import locked_jars
from headrace.runtime.java import find_java
from headrace.runtime.jvm import build_java_command, choose_heap
from headrace.runtime.places import logs_folder
from headrace.runtime.python_packages import PYTHON, python_of
from headrace.runtime.storage_support import NO_STORAGE, StorageSupport

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
