"""Spark belongs to the process that started it: no JVM is left behind."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import psutil

from waiting import DEADLINE_S, until


def test_a_killed_python_takes_its_jvm_with_it_while_spark_works(tmp_path: Path) -> None:
    """The session is opened by a thread that ends: the JVM belongs to the process, not to it."""
    program = textwrap.dedent(
        f"""
        import threading
        from headrace.runtime.session import open_spark
        opened = []
        def start():
            opened.append(open_spark("k", master="local[2]", memory="512m"))
        opening = threading.Thread(target=start)
        opening.start()
        opening.join()
        spark = opened[0].spark
        stream = spark.readStream.format("rate").load().writeStream.format("delta")
        stream = stream.option("checkpointLocation", {str(tmp_path / "checkpoint")!r})
        stream.start({str(tmp_path / "table")!r})
        print(opened[0].jvm_pid, flush=True)
        spark.range(0, 10**13, 1, 1).selectExpr("sum(id * 7 % 3)").collect()
        """
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    log = tmp_path / "table" / "_delta_log"
    try:
        assert process.stdout is not None
        jvm = psutil.Process(int(process.stdout.readline()))
        until(lambda: process.poll() is not None or any(log.glob("*1.json")), "the stream commits")
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()
    psutil.wait_procs([jvm], timeout=DEADLINE_S)
    assert not jvm.is_running() or jvm.status() == psutil.STATUS_ZOMBIE
