"""What a log's end tells of a program that did not start."""

from __future__ import annotations

from pathlib import Path

from headrace.runtime.jvm import tail

LOG = """\
[0.427s][warning][aot,codecache,stubs] Saved blob's name differs
2026-11-21 15:39:17.761 WARN [main] util.Utils: Your hostname resolves to a loopback address
Exception in thread "main" org.apache.spark.SparkException: Master must either be yarn or start with spark
\tat org.apache.spark.deploy.SparkSubmit.error(SparkSubmit.scala:1068)
\t... 12 more
WARNING: package sun.security.action not in java.base
2026-11-21 15:39:18.002 ERROR [main] spark.SparkContext: All masters are unresponsive

"""


def test_the_end_of_a_log_has_no_warnings_and_no_stack(tmp_path: Path) -> None:
    log = tmp_path / "spark.log"
    log.write_text(LOG + LOG)
    assert tail(log, 8) == [
        'Exception in thread "main" org.apache.spark.SparkException: '
        "Master must either be yarn or start with spark",
        "2026-11-21 15:39:18.002 ERROR [main] spark.SparkContext: All masters are unresponsive",
    ]
    assert tail(log, 1)[0].endswith("unresponsive")
    assert tail(tmp_path / "none", 8) == []
