"""What starts a pipeline: files for systemd, compose and Kubernetes, with no values of variables, and a
`spark-submit` command."""

from __future__ import annotations

import getpass
import os
import re
import shlex
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, Literal

from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import LiteralScalarString

from headrace.declare.spec_values import build_values, find_variables
from headrace.errors import CommandLineError
from headrace.model.project import ProjectSettings
from headrace.project.engine import find_session_support
from headrace.project.template.files import own_requirement
from headrace.runtime.defaults import default_master
from headrace.runtime.places import cache_folder
from headrace.runtime.submit import (
    IMAGE_JARS,
    IMAGE_MAIN,
    DeployMode,
    Submission,
    build_submission,
    spark_settings,
)
from headrace.storage.layout import locate

Platform = Literal["kubernetes", "systemd", "compose"]

_STOP_S = 120  # a stop waits for the running batch, which can take 30 s
_UID = 1000
_TEMPLATE = "/opt/headrace/executor/pod.yaml"
_AWS = {
    "AWS_ACCESS_KEY_ID": "access_key_id",
    "AWS_SECRET_ACCESS_KEY": "secret_access_key",
    "AWS_SESSION_TOKEN": "access_key_id",
    "AWS_REGION": "region",
    "AWS_ENDPOINT_URL_S3": "endpoint",
}
"""The variables of AWS, and the keys of `object_storage: {s3: ..}` that take their place."""
_PORTS = {"driver": 7078, "blocks": 7079}


@dataclass(frozen=True, kw_only=True)
class Deployment:
    settings: ProjectSettings
    schedule: str | None  # when a triggered run starts; ``None`` for a continuous run
    image: str
    namespace: str

    @property
    def name(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.settings.name.lower()).strip("-")[:50]

    @property
    def arguments(self) -> list[str]:
        """Of Headrace, behind the options that name the pipeline."""
        return [] if self.schedule else ["--continuous"]

    @property
    def variables(self) -> list[str]:
        """The environment variables that the spec names, and those of AWS that it leaves to the environment:
        a container has no files of AWS's tools."""
        file, given = self.settings.file, self.settings.s3
        own = find_variables(build_values(file.read_text(encoding="utf-8"), str(file)))
        aws = () if self.volume is not None else tuple(_AWS)
        return sorted({*own, *(name for name in aws if getattr(given, _AWS[name]) is None)})

    @property
    def storage(self) -> str:
        return str(self.settings.storage.root)

    @property
    def volume(self) -> str | None:
        """The folder of the storage; ``None`` for a storage that a container reaches by its URI."""
        root = self.settings.storage.root
        return str(root) if root.is_local else None

    def named(self, spec: str) -> list[str]:
        return ["--project", spec, "--profile", self.settings.profile]


def build_files(platform: Platform, deployment: Deployment) -> Mapping[str, str]:
    match platform:
        case "systemd":
            return _systemd(deployment)
        case "compose":
            return {**_image(deployment), "compose.yaml": _yaml(_compose(deployment))}
        case "kubernetes":
            return {**_image(deployment), "kubernetes.yaml": _yaml(*_kubernetes(deployment))}


def _systemd(one: Deployment) -> Mapping[str, str]:
    headrace = Path(sys.executable).with_name("headrace")
    command = [str(headrace), "run", *one.named(str(one.settings.file)), *one.arguments]
    # A percent sign begins a specifier of systemd, and a dollar sign a variable.
    start = " ".join(shlex.quote(word).replace("%", "%%").replace("$", "$$") for word in command)
    restart = "no" if one.schedule else "on-failure"
    service = f"""\
[Unit]
Description=Headrace pipeline {one.settings.name}
After=network-online.target
Wants=network-online.target
StartLimitIntervalSec=0

[Service]
Type={"oneshot" if one.schedule else "exec"}
User={getpass.getuser()}
WorkingDirectory={str(one.settings.root).replace("%", "%%")}
# NAME=value for each variable of the spec; readable by root alone.
EnvironmentFile=-/etc/headrace/{one.name}.env
ExecStart={start}
# A run that has stopped between two batches ends with 143. 2: the pipeline or the command line is wrong.
SuccessExitStatus=143
Restart={restart}
RestartSec=10
RestartPreventExitStatus=2
TimeoutStopSec={_STOP_S}
# Python gets the signal, and ends Spark's JVM itself.
KillMode=mixed

[Install]
WantedBy=multi-user.target
"""
    if not one.schedule:
        return {f"{one.name}.service": service}
    timer = f"""\
[Unit]
Description=Runs the Headrace pipeline {one.settings.name}

[Timer]
OnCalendar={one.schedule}
Persistent=true

[Install]
WantedBy=timers.target
"""
    return {f"{one.name}.service": service.partition("\n[Install]")[0], f"{one.name}.timer": timer}


def _image(one: Deployment) -> Mapping[str, str]:
    minor = f"{sys.version_info.major}.{sys.version_info.minor}"
    extras = ["s3"] * (one.volume is None) + ["msk"] * ("msk" in find_session_support(one.settings).jar_sets)
    name = f"headrace[{','.join(extras)}]" if extras else "headrace"
    requirement = own_requirement().replace("headrace[test]", name)
    packages = shlex.join([requirement, *one.settings.cluster.packages])
    main, fetch = IMAGE_MAIN, f"ensure_jars({', '.join(map(repr, ['spark', *extras]))})"
    if one.volume is None:
        own = f"shutil.copy(headrace.storage.s3.spark.JAR, '{IMAGE_JARS}')"
        fetch = f"import shutil, headrace.storage.s3.spark; {fetch}; {own}"
    dockerfile = f"""\
# Build it in the folder of the pipeline:
#   docker build -f {{folder}}/Dockerfile -t {one.image} .
FROM python:{minor}-slim
RUN useradd --uid {_UID} --create-home headrace
ENV HEADRACE_CACHE=/opt/headrace HEADRACE_LOGS=/tmp/headrace-logs HEADRACE_ENGINE=off HEADRACE_AOT=off
RUN pip install --no-cache-dir {packages}
# The jars for Spark, at {IMAGE_JARS}.
RUN python -c "from headrace.runtime.fetch import ensure_jars; {fetch}"
RUN printf 'from headrace.cli.main import main\\nmain()\\n' > {main} && chmod -R a+rX /opt/headrace \\
 && printf '%s\\n' '#!/bin/sh' \\
    '# Spark starts its executors with the argument `executor`.' \\
    'if [ "$1" = executor ]; then exec python -m headrace.runtime.kubernetes_executor; fi' \\
    'exec headrace "$@"' > /opt/headrace/entrypoint && chmod 755 /opt/headrace/entrypoint
COPY . {IMAGE_PIPELINE}
USER {_UID}
WORKDIR /tmp
ENTRYPOINT ["/opt/headrace/entrypoint"]
"""
    # The image does not have the rows of the storage.
    inside = one.settings.storage.root.below(locate(one.settings.root).resolve())
    ignored = ["**/.*", "**/__pycache__", "**/.env", *(["/".join(inside)] if inside else [])]
    return {"Dockerfile": dockerfile, "Dockerfile.dockerignore": "".join(f"{line}\n" for line in ignored)}


def _compose(one: Deployment) -> dict[str, Any]:
    named = one.named(f"{IMAGE_PIPELINE}/{one.settings.file.name}")
    if one.volume is not None:
        named += ["--storage", "/srv/lake"]
    service: dict[str, Any] = {
        "image": one.image,
        "build": {"context": "{root}", "dockerfile": "{folder}/Dockerfile"},
        "command": ["run", *named, *one.arguments],
        # Compose takes the values from the environment, or from the file `.env` beside it.
        "environment": one.variables,
        **({} if one.volume is None else {"volumes": [f"{one.volume}:/srv/lake"]}),
        "restart": "no" if one.schedule else "on-failure",
        "stop_grace_period": f"{_STOP_S}s",
    }
    if not one.schedule:
        check = ["CMD", "headrace", "status", *named, "--check"]
        service["healthcheck"] = {"test": check, "interval": "60s", "timeout": "30s", "start_period": "300s"}
    return {"name": one.name, "services": {"pipeline": service}}


def _kubernetes(one: Deployment) -> Sequence[dict[str, Any]]:
    labels = {"app.kubernetes.io/name": one.name, "app.kubernetes.io/managed-by": "headrace"}

    def document(kind: str, version: str, **content: Any) -> dict[str, Any]:
        metadata = {"name": one.name, "namespace": one.namespace, "labels": labels}
        return {"apiVersion": version, "kind": kind, "metadata": metadata, **content}

    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": one.name}
    subject = {"kind": "ServiceAccount", "name": one.name, "namespace": one.namespace}
    resources = ["pods", "services", "configmaps", "persistentvolumeclaims"]
    verbs = ["create", "get", "list", "watch", "patch", "delete", "deletecollection"]
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "100Gi"}}}
    ports = [{"name": name, "port": port} for name, port in _PORTS.items()]
    executor = {"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": labels}}
    executor["spec"] = _pod_spec(one, {"name": "executor", "image": one.image}, [])
    selector = {**labels, "headrace/role": "driver"}
    driver = {"metadata": {"labels": selector}, "spec": _driver(one)}
    documents = [
        document("ServiceAccount", "v1"),
        document(
            "Role",
            "rbac.authorization.k8s.io/v1",
            rules=[{"apiGroups": [""], "resources": resources, "verbs": verbs}],
        ),
        document("RoleBinding", "rbac.authorization.k8s.io/v1", roleRef=role, subjects=[subject]),
        *([] if one.volume is None else [document("PersistentVolumeClaim", "v1", spec=claim)]),
        document("ConfigMap", "v1", data={"pod.yaml": LiteralScalarString(_yaml(executor))}),
        # Executors find the driver by this name.
        document(
            "Service",
            "v1",
            # Also while its startup probe still fails.
            spec={
                "clusterIP": "None",
                "publishNotReadyAddresses": True,
                "selector": selector,
                "ports": ports,
            },
        ),
    ]
    if one.schedule:
        job = {"backoffLimit": 3, "template": driver}
        cron = {"schedule": one.schedule, "concurrencyPolicy": "Forbid", "jobTemplate": {"spec": job}}
        return [*documents, document("CronJob", "batch/v1", spec=cron)]
    # Two drivers at once would only wait for each other.
    spec: dict[str, Any] = {
        "replicas": 1,
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": selector},
        "template": driver,
    }
    return [*documents, document("Deployment", "apps/v1", spec=spec)]


def _driver(one: Deployment) -> dict[str, Any]:
    named = [*one.named(f"{IMAGE_PIPELINE}/{one.settings.file.name}"), "--storage", one.storage]
    configuration = {
        "spark.kubernetes.namespace": one.namespace,
        "spark.kubernetes.container.image": one.image,
        "spark.kubernetes.driver.pod.name": "$(POD_NAME)",
        "spark.kubernetes.executor.podTemplateFile": _TEMPLATE,
        "spark.driver.host": f"{one.name}.{one.namespace}.svc",
        "spark.driver.bindAddress": "0.0.0.0",
        "spark.driver.port": str(_PORTS["driver"]),
        "spark.driver.blockManager.port": str(_PORTS["blocks"]),
    }
    given = ["--set", "runtime.master=k8s://https://kubernetes.default.svc"]
    for key, value in configuration.items():
        given += ["--set", f"configuration.{key}={value}"]
    pod_name = {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    secret = f"{one.name}-secrets"
    references = [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": name, "optional": True}}}
        for name in one.variables
    ]
    container: dict[str, Any] = {
        "name": "driver",
        "image": one.image,
        "args": ["run", *named, *given, *one.arguments],
        "env": [pod_name, *references],
        "resources": {"requests": {"cpu": "1", "memory": "3Gi"}, "limits": {"memory": "3Gi"}},
    }
    if not one.schedule:
        probe = {"exec": {"command": ["headrace", "status", *named, "--check"]}, "timeoutSeconds": 30}
        # The first run may create many tables before a flow has a state.
        container["startupProbe"] = {**probe, "periodSeconds": 10, "failureThreshold": 60}
        container["livenessProbe"] = {**probe, "periodSeconds": 60, "failureThreshold": 3}
    template = [{"name": "executor", "configMap": {"name": one.name}}]
    mount = {"name": "executor", "mountPath": str(Path(_TEMPLATE).parent), "readOnly": True}
    spec = _pod_spec(one, {**container, "volumeMounts": [mount]}, template)
    account = {"serviceAccountName": one.name, "terminationGracePeriodSeconds": _STOP_S}
    return {**account, **spec, **({"restartPolicy": "Never"} if one.schedule else {})}


def _pod_spec(one: Deployment, container: dict[str, Any], volumes: Sequence[Any]) -> dict[str, Any]:
    """A pod that sees the folder of the storage under its path, and runs as a user without rights."""
    mounts: list[Any] = []
    if one.volume is not None:
        mounts = [{"name": "storage", "mountPath": one.volume}]
        volumes = [{"name": "storage", "persistentVolumeClaim": {"claimName": one.name}}, *volumes]
    return {
        "securityContext": {"runAsNonRoot": True, "runAsUser": _UID, "fsGroup": _UID},
        "containers": [
            {
                **container,
                "volumeMounts": [*mounts, *container.get("volumeMounts", [])],
                "securityContext": {"allowPrivilegeEscalation": False},
            }
        ],
        "volumes": [*volumes],
    }


def _yaml(*documents: Any) -> str:
    yaml, text = YAML(), StringIO()
    yaml.width = 4096
    yaml.indent(mapping=2, sequence=4, offset=2)
    # Labels that several objects share are written in full.
    yaml.representer.ignore_aliases = lambda _: True
    yaml.dump_all(documents, text) if len(documents) > 1 else yaml.dump(documents[0], text)
    return text.getvalue()


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
    return build_submission(
        settings.name,
        master,
        mode,
        spark_settings(settings),
        memory=settings.memory,
        arguments=[*named, *arguments],
        archive=archive,
        storage=find_session_support(settings),
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
