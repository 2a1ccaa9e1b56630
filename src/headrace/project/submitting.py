"""A run as a `spark-submit` command."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from headrace.errors import CommandLineError
from headrace.model.project import ProjectSettings
from headrace.runtime.defaults import default_master
from headrace.runtime.places import cache_folder
from headrace.runtime.python_packages import spark_settings
from headrace.runtime.submit import DeployMode, Submission, build_submission

IMAGE_PIPELINE = "/opt/headrace/pipeline"


def plan_submission(settings: ProjectSettings, mode: DeployMode, arguments: Sequence[str]) -> Submission:
    """`arguments`: those of `headrace run`, without the options that name the pipeline."""
    master = settings.master or default_master()
    spec, archive = settings.file, None
    if mode == "cluster":
        _check_cluster_mode(settings, master)
        if master.startswith("k8s://"):
            spec = Path(IMAGE_PIPELINE) / spec.name
        else:
            spec, archive = Path("pipeline") / spec.name, _pack_folder(settings)
    named = ["run", "--project", str(spec), "--profile", settings.profile]
    from headrace.storage.s3.spark import find_support

    return build_submission(
        settings.name,
        master,
        mode,
        spark_settings(settings),
        memory=settings.memory,
        arguments=[*named, *arguments],
        archive=archive,
        storage=find_support(settings),
    )


def _check_cluster_mode(settings: ProjectSettings, master: str) -> None:
    problem, remedies = None, ["headrace submit --deploy-mode client"]
    if not master.startswith(("yarn", "k8s://")):
        problem = f"Spark starts no Python driver on {master}; cluster mode needs YARN or Kubernetes"
    elif settings.kafka.is_embedded:
        problem = "the embedded broker runs on this machine only, and the driver would run on another"
        remedies = ["name the brokers in the profile:   kafka: {bootstrap.servers: broker.example:9092}"]
    elif Path(str(settings.storage.root)).is_relative_to(settings.root):
        problem = f"the storage {settings.storage.root} is in the pipeline's folder on this machine"
        remedies = ["name a shared folder in the profile:   storage: /srv/lake"]
    if problem is not None:
        raise CommandLineError(problem, remedies=remedies, params={"master": master})


def _pack_folder(settings: ProjectSettings) -> Path:
    """Returns a zip archive of the pipeline's files."""
    archive = cache_folder() / "packages" / f"pipeline-{settings.name}-{os.getpid()}.zip"
    archive.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as target:
        for file in _files(settings.root):
            target.write(file, file.relative_to(settings.root))
    return archive


def _files(root: Path) -> Iterator[Path]:
    for folder, below, files in os.walk(root):
        # Virtual environments, caches, version control, and Delta tables are not the pipeline.
        below[:] = [
            name
            for name in below
            if not name.startswith((".", "__pycache__"))
            and not (Path(folder) / name / "pyvenv.cfg").exists()
            and not (Path(folder) / name / "_delta_log").exists()
        ]
        yield from (Path(folder) / name for name in files if not name.startswith("."))
