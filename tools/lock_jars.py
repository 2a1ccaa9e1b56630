"""Make `jars.lock.json` again: resolve, fetch, and write every coordinate with its size and sum.

Run by maintainers: `make lock`. Ivy resolves the broker's dependencies; Spark's side is given.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace.runtime.jars import Coordinate, find_java, spark_jars_folder, start_ivy

SPARK = [
    "io.delta:delta-spark_4.2_2.13:4.4.0",
    "io.delta:delta-storage:4.4.0",
    "io.delta:delta-kernel-api:4.4.0",
    "io.delta:delta-kernel-defaults:4.4.0",
    "io.delta:delta-kernel-unitycatalog:4.4.0",
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.1.0-preview1",
    # 4.2.0 does not resolve everywhere; this one works with Spark 4.2.
    "org.apache.spark:spark-avro_2.13:4.1.1",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
    "org.scala-lang.modules:scala-parallel-collections_2.13:1.2.0",
]
BROKER = ["org.apache.kafka:kafka_2.13:4.3.0"]
# Hadoop's client of S3. It names the whole SDK of AWS as one jar of 690 MB; these are the parts that it uses.
S3 = [
    "org.apache.hadoop:hadoop-aws:3.5.0",
    "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.1",
]
S3_SDK = ("s3", "s3-transfer-manager", "sts")
# The login of Amazon MSK.
MSK = ["software.amazon.msk:aws-msk-iam-auth:2.3.5"]
MSK_SDK = ("sts", "sso", "ssooidc")
SDK_VERSION = "2.36.3"  # one for both: they can be in one session
# PySpark has this API under another name.
IN_SPARK = {"commons-logging"}
LOCK = Path(__file__).parents[1] / "src/headrace/runtime/jars.lock.json"


def resolve(roots: list[str], *, transitive: bool) -> list[dict[str, object]]:
    """Every artifact that Ivy brings for these coordinates."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        coordinates = [Coordinate.parse(root) for root in roots]
        process = start_ivy(find_java(), coordinates, folder, transitive=transitive)
        log = folder / "ivy.log"
        if process.wait() != 0:
            sys.exit(log.read_text())
        found = sorted(set(re.findall(r"\[SUCCESSFUL \] (\S+)#(\S+);(\S+)!", log.read_text())))
        entries = []
        for group, artifact, version in found:
            coordinate = Coordinate(group, artifact, version)
            data = (folder / "jars" / f"{group}_{coordinate.jar_name}").read_bytes()
            digest = hashlib.sha256(data).hexdigest()
            entries.append({"coordinate": str(coordinate), "size": len(data), "sha256": digest})
        return entries


def resolve_sdk(names: Sequence[str]) -> list[dict[str, object]]:
    return resolve([f"software.amazon.awssdk:{name}:{SDK_VERSION}" for name in names], transitive=True)


def without_spark(entries: list[dict[str, object]]) -> list[dict[str, object]]:
    """Leaves out the artifacts that PySpark has, in a version of its own."""
    names = {re.sub(r"-[0-9][^-]*$", "", jar.stem) for jar in spark_jars_folder().glob("*.jar")} | IN_SPARK
    return [entry for entry in entries if Coordinate.parse(str(entry["coordinate"])).artifact not in names]


def main() -> None:
    sets = {
        "spark": resolve(SPARK, transitive=False),
        "broker": resolve(BROKER, transitive=True),
        "s3": without_spark([*resolve(S3, transitive=False), *resolve_sdk(S3_SDK)]),
        "msk": without_spark([*resolve(MSK, transitive=False), *resolve_sdk(MSK_SDK)]),
    }
    LOCK.write_text(lock_text(sets))


def lock_text(sets: Mapping[str, list[dict[str, object]]]) -> str:
    """The lock file, with a line for each artifact."""
    lists = (
        f'  "{name}": [\n' + ",\n".join(f"   {json.dumps(one)}" for one in entries) + "\n  ]"
        for name, entries in sets.items()
    )
    return '{\n "format": 1,\n "sets": {\n' + ",\n".join(lists) + "\n }\n}\n"


if __name__ == "__main__":
    main()
