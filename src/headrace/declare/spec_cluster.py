"""``cluster`` in the spec, and the Spark settings that it needs or excludes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headrace.declare.spec_model import Spec
from headrace.errors import SourceLocation, SpecInvalidError
from headrace.model.cluster import ClusterSettings, ExecutorLimits
from headrace.runtime.defaults import is_local

_CORES = "spark.executor.cores"
_DYNAMIC = "spark.dynamicAllocation.enabled"


def build_cluster(
    spec: Spec, keys: Mapping[str, SourceLocation], settings: Mapping[str, SourceLocation]
) -> ClusterSettings:
    """`keys`, `settings`: the locations of the keys of `cluster` and of `configuration`."""
    packages, executors = tuple(spec.cluster.packages), spec.cluster.executors
    if executors is None:
        return ClusterSettings(packages=packages, location=keys.get("packages"))
    master = named_master(spec)
    if master is not None and not is_local(master):
        check_executors(spec.configuration.get, keys.get("executors"), settings)
    limits = ExecutorLimits(
        least=executors.min, most=executors.max, backlog_s=executors.backlog, idle_s=executors.idle
    )
    return ClusterSettings(packages=packages, executors=limits, location=keys.get("packages"))


def named_master(spec: Spec) -> str | None:
    """The Spark master of the spec: ``runtime.master``, or ``spark.master`` of ``configuration``."""
    return spec.runtime.master or spec.configuration.get("spark.master")


def check_executors(
    get: Callable[[str], str | None],
    location: SourceLocation | None = None,
    settings: Mapping[str, SourceLocation] | None = None,
) -> None:
    """Check the Spark settings that `cluster.executors` needs. `location`: that of `cluster.executors`;
    `settings`: those of the settings."""
    if get(_CORES) is None:
        raise SpecInvalidError(
            f"`cluster.executors` needs `{_CORES}`: the size of one executor",
            location=location,
            remedies=[f'add `{_CORES}: "2"` under `configuration:`'],
            params={"key": "cluster.executors"},
        )
    if (get(_DYNAMIC) or "").lower() == "true":
        raise SpecInvalidError(
            f"`{_DYNAMIC}` cannot be used with `cluster.executors`: both would set the number of executors",
            location=(settings or {}).get(_DYNAMIC),
            remedies=[f"remove `{_DYNAMIC}`, or remove `cluster.executors`"],
            params={"key": f"configuration.{_DYNAMIC}"},
        )
