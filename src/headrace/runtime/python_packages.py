"""Python packages of this environment as an archive for executors, and the Python of the workers."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from headrace.errors import SourceLocation, SpecInvalidError
from headrace.model.project import ProjectSettings
from headrace.runtime.defaults import is_local
from headrace.runtime.places import cache_folder

PYTHON = "spark.pyspark.python"
_FOLDER = "headrace-packages"  # where an executor unpacks the archive, in its working directory
_PATH = "spark.executorEnv.PYTHONPATH"
_ON_EXECUTORS = ("pyspark", "py4j")
"""Packages that each machine with Spark has."""


def python_of(settings: Mapping[str, str]) -> str:
    """Returns the Python of the workers: by default this one, not the `python3` in PATH."""
    return settings.get(PYTHON) or os.environ.get("PYSPARK_PYTHON") or sys.executable


def spark_settings(settings: ProjectSettings) -> dict[str, str]:
    """Returns the Spark settings of a spec, with those that send its packages to a cluster's executors."""
    conf = {key: value for key, value in settings.configuration.items() if key.startswith("spark.")}
    if settings.master is None or is_local(settings.master):
        return conf
    return conf | package_settings(settings.cluster.packages, conf, settings.cluster.location)


def package_settings(
    names: Sequence[str], conf: Mapping[str, str], location: SourceLocation | None = None
) -> dict[str, str]:
    """Returns the Spark settings that send packages to the executors; packs them if that was not done."""
    if not names:
        return {}
    archive = pack(find_distributions(names, location))
    archives = [*filter(None, [conf.get("spark.archives")]), f"{archive}#{_FOLDER}"]
    paths = [_FOLDER, *filter(None, [conf.get(_PATH)])]
    return {"spark.archives": ",".join(archives), _PATH: os.pathsep.join(paths)}


def find_distributions(
    names: Sequence[str], location: SourceLocation | None = None
) -> tuple[Distribution, ...]:
    """Returns the packages and the installed packages that they need, without those of Spark."""
    found: dict[str, Distribution] = {}
    waiting = [(name, True) for name in names]
    while waiting:
        name, is_named = waiting.pop(0)
        key = re.sub(r"[-_.]+", "-", name).lower()
        if key in found or (key in _ON_EXECUTORS and not is_named):
            continue
        try:
            one = distribution(name)
        except PackageNotFoundError:
            # A package can need others on other platforms only.
            if is_named:
                raise _not_sent(name, "it is not installed here", f"pip install {name}", location) from None
            continue
        if one.files is None or _is_editable(one):
            problem = "its installation here does not list its files"
            raise _not_sent(name, problem, f"install it without -e:   pip install {name}", location)
        found[key] = one
        waiting += [(needed, False) for needed in _needed(one)]
    return tuple(found[key] for key in sorted(found))


def pack(distributions: Iterable[Distribution]) -> Path:
    """Returns a zip archive of packages in the cache. The name has a hash of their files, so each archive
    is made once."""
    chosen = tuple(distributions)
    # A record has the hash of each file: a version can be installed again with other code.
    packages = [(one.name, one.version, one.read_text("RECORD")) for one in chosen]
    parts = [platform.python_version(), platform.machine(), packages]
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
    archive = cache_folder() / "packages" / f"packages-{key}.zip"
    if not archive.exists():
        archive.parent.mkdir(parents=True, exist_ok=True)
        unfinished = archive.with_suffix(f".{os.getpid()}")
        _write(unfinished, chosen)
        unfinished.replace(archive)
    return archive


def _write(archive: Path, distributions: Iterable[Distribution]) -> None:
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as target:
        for one in distributions:
            for file in one.files or ():
                path = Path(str(one.locate_file(file)))
                # Scripts are outside of the packages' folder.
                if ".." not in file.parts and "__pycache__" not in file.parts and path.is_file():
                    target.write(path, file.as_posix())


def _needed(one: Distribution) -> Iterator[str]:
    for requirement in one.requires or ():
        text, _, condition = requirement.partition(";")
        if "extra" not in condition and (name := re.match(r"[A-Za-z0-9][\w.-]*", text)):
            yield name[0]


def _is_editable(one: Distribution) -> bool:
    origin = json.loads(one.read_text("direct_url.json") or "{}")
    return bool(origin.get("dir_info", {}).get("editable"))


def _not_sent(name: str, problem: str, remedy: str, location: SourceLocation | None) -> SpecInvalidError:
    return SpecInvalidError(
        f"`cluster.packages` names `{name}`, which cannot be sent to the executors: {problem}",
        location=location,
        remedies=[remedy],
        params={"key": "cluster.packages", "package": name},
    )
