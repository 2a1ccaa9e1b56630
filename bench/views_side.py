"""The same views in Spark's own declarative pipelines, which compute each as a whole: a Connect server
in a JVM of its own, and Spark's command line. The views are in Parquet: Spark's pipelines refresh no table of
Delta Lake a second time (DELTA_CANNOT_CHANGE_PROVIDER)."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

_SESSION = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.shuffle.partitions": str(len(os.sched_getaffinity(0))),
    "spark.ui.enabled": "false",
}
_VIEW = """
@dp.materialized_view(name="{name}", format="parquet")
def query():
    return spark.sql("{query}")
"""
_DEADLINE_S = 120


class SparkPipelines:
    """A pipeline of Spark over a Delta table."""

    def __init__(self, root: Path, facts: Path, queries: Mapping[str, str]) -> None:
        from headrace.runtime.fetch import ensure_jars
        from headrace.runtime.jars import find_java
        from headrace.runtime.jvm import build_java_command

        self._folder = root / "sdp"
        self._folder.mkdir()
        self._spec = self._folder / "spark-pipeline.yml"
        spec = {"name": "bench", "storage": (self._folder / "state").as_uri(), "database": "default"}
        self._spec.write_text(json.dumps({**spec, "libraries": [{"glob": {"include": "views.py"}}]}))
        head = "from pyspark import pipelines as dp\nfrom pyspark.sql import SparkSession\n\n"
        head += "spark = SparkSession.active()\n"
        views = (
            _VIEW.format(name=name, query=query.replace("FROM facts", f"FROM delta.`{facts}`"))
            for name, query in queries.items()
        )
        (self._folder / "views.py").write_text(head + "".join(views))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        warehouse = {"spark.sql.warehouse.dir": (self._folder / "tables").as_uri()}
        settings = {**_SESSION, **warehouse, "spark.connect.grpc.binding.port": str(self._port)}
        options = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
        command = build_java_command(
            find_java(), ensure_jars("spark"), heap="4g", log_file=self._folder / "server.log"
        )
        command += ["org.apache.spark.deploy.SparkSubmit", "--master", "local[*]", *options, "--class"]
        command += ["org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
        self._server = subprocess.Popen(command, cwd=self._folder, stdout=subprocess.DEVNULL)
        self._wait()

    def _wait(self) -> None:
        end = time.monotonic() + _DEADLINE_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port), 1).close()
                return
            except OSError:
                if self._server.poll() is not None or time.monotonic() > end:
                    raise SystemExit(f"Spark's Connect server did not start: {self._folder}") from None
                time.sleep(0.2)

    def refresh(self, view: str) -> float:
        """Refresh a view; the seconds from the start of its flow to its end."""
        command = [sys.executable, "-m", "pyspark.pipelines.cli", "run", "--spec", str(self._spec)]
        environment = {**os.environ, "SPARK_REMOTE": f"sc://127.0.0.1:{self._port}"}
        times: dict[str, float] = {}
        said = []
        with subprocess.Popen(
            [*command, "--refresh", view],
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                said.append(line)
                if "Flow" in line and (state := re.search("RUNNING|COMPLETED", line)):
                    times[state[0]] = time.monotonic()
        if process.returncode or len(times) < 2:
            raise SystemExit("".join(said))
        return times["COMPLETED"] - times["RUNNING"]

    def close(self) -> None:
        self._server.terminate()
        self._server.wait()
