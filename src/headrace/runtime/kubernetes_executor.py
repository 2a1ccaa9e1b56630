"""The entry point of an executor on Kubernetes: it takes the place of the script of Spark's own image."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from headrace.runtime.jars import find_java
from headrace.runtime.jvm import class_path

_BACKEND = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
_OPTION = re.compile(r"SPARK_JAVA_OPT_(\d+)")
_ARGUMENTS = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}
_MISSING = "--add-modules=jdk.incubator.vector"
"""An option of Spark's launcher for a module that the wheel's Java does not have."""


def build_executor_command(java: str, jars: str, environment: Mapping[str, str]) -> Sequence[str]:
    numbered = {int(found[1]): value for key, value in environment.items() if (found := _OPTION.match(key))}
    options = [numbered[number] for number in sorted(numbered) if numbered[number] != _MISSING]
    memory = environment["SPARK_EXECUTOR_MEMORY"]
    arguments = [word for name, key in _ARGUMENTS.items() for word in (name, environment[key])]
    own = environment.get("SPARK_CLASSPATH")
    path = os.pathsep.join(filter(None, [own, jars]))
    return [java, *options, f"-Xms{memory}", f"-Xmx{memory}", "-cp", path, _BACKEND, *arguments]


if __name__ == "__main__":
    _java = str(find_java().executable)
    os.execv(_java, list(build_executor_command(_java, class_path([]), os.environ)))
