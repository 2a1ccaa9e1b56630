"""The JVM of Spark. Headrace starts it, and it ends with Headrace."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import psutil

from headrace.errors import SparkStartError
from headrace.runtime.defaults import available_cores
from headrace.runtime.jars import Java, spark_jars_folder
from headrace.runtime.processes import end, start_bound

LOCAL_JAR = Path(__file__).with_name("headrace-local.jar")
"""Hadoop's local files without a process for each; see `LOCAL_FILES`."""
_START_TIMEOUT_S = 120.0  # far more than a start takes on a busy machine; ends the wait for a JVM that hangs

_OPENED = (
    *("java.base/java.lang", "java.base/java.lang.invoke", "java.base/java.lang.reflect"),
    *("java.base/java.io", "java.base/java.net", "java.base/java.nio", "java.base/java.util"),
    *("java.base/java.util.concurrent", "java.base/java.util.concurrent.atomic"),
    *("java.base/jdk.internal.ref", "java.base/sun.nio.ch", "java.base/sun.nio.cs"),
    *("java.base/sun.security.action", "java.base/sun.util.calendar", "java.security.jgss/sun.security.krb5"),
)

MODULE_OPTIONS = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED),
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
    # Arrow fails without these two.
    "--sun-misc-unsafe-memory-access=allow",
    "--enable-native-access=ALL-UNNAMED",
    "-Dderby.connection.requireAuthentication=false",
)
"""The options of Spark's launcher, without the module jdk.incubator.vector, which the wheel's Java does
not have."""


_NO_ERROR = re.compile(
    r"\s+at |\s*\.\.\. \d+ more|WARNING: |[-\d]+ [:.,\d]+ (WARN|INFO) |\[[.\d]+s\]\[(warning|info)"
)


@dataclass(frozen=True)
class SparkJvm:
    process: subprocess.Popen[bytes]  # its process; it ends when its standard input is closed
    port: int
    secret: str

    @property
    def pid(self) -> int:
        return self.process.pid

    def end(self, timeout_s: float) -> None:
        """Asks the JVM to end by closing its standard input; kills it after the timeout."""
        end(self.process, timeout_s)


def choose_heap(cores: int | None = None) -> str:
    """Returns a heap size: 320 MB for each core, at least 1,280 MB, at most a quarter of the memory."""
    cores = cores or available_cores()
    total_mb = psutil.virtual_memory().total // (1 << 20)
    wanted = max(1280, 320 * cores)
    return f"{max(512, min(wanted, total_mb // 4 // 64 * 64))}m"


def class_path(jars: Sequence[Path]) -> str:
    """Returns Spark's jars and ours in a fixed order; an AOT cache is valid for one order only."""
    own = sorted(spark_jars_folder().glob("*.jar"))
    # First, as in Spark's launcher: other jars contain an older version of this API.
    first = [jar for jar in own if jar.name.startswith("slf4j-api-")]
    rest = [jar for jar in own if jar not in first]
    return os.pathsep.join(map(str, [*first, *rest, LOCAL_JAR, *jars]))


def collector_options() -> tuple[str, ...]:
    """Returns the option for the garbage collector; an AOT cache is valid for one collector only. On fewer
    than four cores Java would choose the serial collector or G1. Measured with 2 million records: the
    parallel collector pauses half as long as the serial one, and needs 180 MB less than G1."""
    return ("-XX:+UseParallelGC",) if available_cores() < 4 else ()


def build_java_command(java: Java, jars: Sequence[Path], *, heap: str, log_file: Path) -> list[str]:
    """Returns Java with the options and the class path of Spark's JVM, without a main class."""
    log4j = resources.files("headrace.runtime").joinpath("log4j2.properties")
    return [
        str(java.executable),
        f"-Xmx{heap}",
        *collector_options(),
        *MODULE_OPTIONS,
        *java.trust_options(),
        f"-Dlog4j2.configurationFile={log4j}",
        f"-Dheadrace.log.file={log_file}",
        "-cp",
        class_path(jars),
    ]


def build_command(
    java: Java,
    jars: Sequence[Path],
    *,
    heap: str,
    log_file: Path,
    settings: Mapping[str, str],
    extra_options: Sequence[str] = (),
) -> list[str]:
    spark_options = []
    for key, value in settings.items():
        spark_options += ["--conf", f"{key}={value}"]
    return [
        *build_java_command(java, jars, heap=heap, log_file=log_file),
        *extra_options,
        "org.apache.spark.deploy.SparkSubmit",
        *spark_options,
        "pyspark-shell",
    ]


def start_jvm(
    command: Sequence[str],
    log_file: Path,
    environment: Mapping[str, str],
    meanwhile: Callable[[], None] = lambda: None,
) -> SparkJvm:
    log_file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        answer = Path(folder) / "gateway"
        env = {**os.environ, **environment, "_PYSPARK_DRIVER_CONN_INFO_PATH": str(answer)}
        try:
            process = start_bound(command, log_file, env)
        except OSError as error:
            raise SparkStartError(
                f"Spark's JVM could not be started: {error}",
                remedies=["check the machine:   headrace doctor"],
            ) from error
        try:
            meanwhile()
            return _await_gateway(process, answer, log_file)
        except BaseException:
            end(process, 0)
            raise


def _await_gateway(process: subprocess.Popen[bytes], answer: Path, log_file: Path) -> SparkJvm:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while not answer.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            why = "did not answer in time" if process.poll() is None else f"ended with {process.returncode}"
            raise SparkStartError(
                f"Spark's JVM {why}",
                facts=[*tail(log_file, 8), f"log: {log_file}"],
                remedies=["check the machine:   headrace doctor"],
                params={"log": str(log_file), "exit_code": process.returncode},
            )
        time.sleep(0.02)
    data = answer.read_bytes()
    port, length = struct.unpack(">ii", data[:8])
    return SparkJvm(process, port, data[8 : 8 + length].decode())


def tail(path: Path, lines: int) -> list[str]:
    """Returns the last lines of a log that report an error, without warnings and stack traces."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return []
    return error_lines(text)[-lines:]


def error_lines(text: str) -> list[str]:
    errors = (line for line in text.splitlines() if line and not _NO_ERROR.match(line))
    return list(dict.fromkeys(errors))
