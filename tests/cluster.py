"""A real standalone cluster on this machine: a master and workers as processes, on loopback.

The workers have the environment of another machine: another working directory, no virtual environment, and
no variable of this process.
"""

from __future__ import annotations

import re
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import psutil
from bench.java import make_java_home

from headrace.runtime.jars import find_java, spark_jars_folder
from headrace.runtime.jvm import MODULE_OPTIONS, class_path
from headrace.runtime.processes import end, start_bound
from waiting import until

WORKERS = 2


class Cluster:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._master: subprocess.Popen[bytes] | None = None
        self._workers: list[subprocess.Popen[bytes]] = []
        self.address = ""

    def start(self) -> None:
        (home := self._folder / "java").mkdir(parents=True)
        self._environment = {
            "PATH": "/usr/bin:/bin",
            "JAVA_HOME": str(make_java_home(home)),
            "SPARK_HOME": str(spark_jars_folder().parent),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_SCALA_VERSION": "2.13",
        }
        self._master, found = self._launch("master", "Master", says=r"Starting Spark master at (spark://\S+)")
        self.address = found[1]
        for _ in range(WORKERS):
            self.add_worker()

    def add_worker(self) -> None:
        name = f"worker{len(self._workers)}"
        offers = ["--cores", "1", "--memory", "1g", "--work-dir", str(self._folder / name), self.address]
        worker, _ = self._launch(name, "Worker", *offers, says="Successfully registered with master")
        self._workers.append(worker)

    def lose_worker(self, number: int) -> None:
        """Kill a worker and its executors, as if its machine were gone."""
        worker = psutil.Process(self._workers[number].pid)
        for process in (worker, *worker.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        self._workers[number].wait()

    def executors(self) -> dict[int, psutil.Process]:
        """The executors by the numbers of their workers."""
        found = {}
        for number, worker in enumerate(self._workers):
            if worker.poll() is None:
                for one in psutil.Process(worker.pid).children(recursive=True):
                    with suppress(psutil.Error):
                        if "org.apache.spark.executor.CoarseGrainedExecutorBackend" in one.cmdline():
                            found[number] = one
        return found

    def said(self) -> str:
        return "\n".join(path.read_text(errors="replace") for path in self._folder.rglob("std*"))

    def stop(self) -> None:
        for process in (*reversed(self._workers), self._master):
            if process is not None:
                end(process, 0)

    def _launch(
        self, name: str, kind: str, *arguments: str, says: str
    ) -> tuple[subprocess.Popen[bytes], re.Match[str]]:
        log = self._folder / f"{name}.log"
        main = f"org.apache.spark.deploy.{kind.lower()}.{kind}"
        listen = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        java = [str(find_java().executable), "-Xmx128m", *MODULE_OPTIONS, "-cp", class_path([])]
        # Relative paths must not lead to the files of the driver.
        moved = ["/usr/bin/env", "-C", str(self._folder), *java]
        process = start_bound([*moved, main, *listen, *arguments], log, self._environment)
        until(
            lambda: re.search(says, log.read_text()) is not None or process.poll() is not None,
            f"{name} says {says}",
        )
        found = re.search(says, log.read_text())
        assert found is not None, log.read_text()
        return process, found
