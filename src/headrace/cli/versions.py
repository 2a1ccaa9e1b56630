"""The versions of what a run uses; no JVM is started."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version

from headrace.errors import JavaUnsuitableError


def find_versions() -> Mapping[str, str | None]:
    """The versions by name; `None` for a Java that was not found."""
    from headrace.runtime.jars import locked_jars
    from headrace.runtime.java import find_java

    jars = {
        name.partition("_")[0]: jar.coordinate.version
        # The broker's set holds clients of its own.
        for jar in locked_jars("broker", "spark")
        for name in [jar.coordinate.artifact]
    }
    try:
        java = find_java()
        running = f"{java.version} ({java.origin})"
    except JavaUnsuitableError:
        running = None
    return {
        "headrace": version("headrace"),
        "spark": version("pyspark"),
        "delta": jars["delta-spark"],
        "kafka": jars["kafka"],
        "kafka_clients": jars["kafka-clients"],
        "java": running,
    }


def versions_text(versions: Mapping[str, str | None]) -> str:
    """The versions as lines."""
    names = {"headrace": "headrace", "spark": "Spark", "delta": "Delta Lake", "kafka": "Kafka broker"}
    names |= {"kafka_clients": "Kafka clients", "java": "Java"}
    lines = [f"{names[name]} {found or 'not found: headrace doctor'}" for name, found in versions.items()]
    return "\n".join([lines[0], *(f"  {line}" for line in lines[1:])])
