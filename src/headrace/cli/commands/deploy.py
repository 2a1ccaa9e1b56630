"""`headrace deploy`: the files that start a pipeline on a machine or on Kubernetes."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.cli.output import Result
from headrace.cli.verb import Invocation, option, refuse, verb

if TYPE_CHECKING:
    from headrace.project.deploying import Platform

_PLATFORMS = ("kubernetes", "systemd", "compose")


@verb(
    examples=(
        "headrace deploy systemd --profile prod",
        "headrace deploy systemd --profile prod --schedule hourly",
        "headrace deploy compose --profile prod",
        "headrace deploy kubernetes --profile prod --image registry.example/shop:1",
        'headrace deploy kubernetes --profile prod --schedule "*/15 * * * *"',
    )
)
@click.argument("platform", type=click.Choice(_PLATFORMS), metavar="|".join(_PLATFORMS))
@option(
    "--out DIR", "The folder of the files; default: deploy, in the folder of the pipeline.", name="folder"
)
@option(
    "--schedule TIME",
    "Triggered runs at these times, in place of a continuous run: a cron expression for Kubernetes, "
    "OnCalendar of systemd.",
)
@option("--image NAME", "The name of the image; default: the name of the pipeline.")
@option("--namespace NAME", "The namespace in Kubernetes.", default="default")
def deploy(
    invocation: Invocation,
    platform: Platform,
    folder: str | None,
    schedule: str | None,
    image: str | None,
    namespace: str,
) -> Result:
    """Write the files that start the pipeline: a systemd unit, a compose file, or manifests.

    The files name the environment variables of the spec and hold no values: systemd reads the values from
    /etc/headrace, compose from the environment, Kubernetes from a secret. Set the variables for this command,
    too. For compose with --schedule, start the service with your own scheduler. Existing files are never
    overwritten.
    """
    from headrace.project.deploying import Deployment, build_files
    from headrace.project.template.files import write_new

    refuse((schedule is not None and not schedule.strip(), "--schedule is empty"))
    settings = invocation.settings()
    target = settings.root / "deploy" if folder is None else Path(folder).expanduser().absolute()
    if platform != "systemd" and not target.is_relative_to(settings.root):
        refuse((True, "--out must be in the folder of the pipeline, which becomes part of the image"))
    name = image or f"{settings.name.lower()}:latest"
    deployment = Deployment(settings=settings, schedule=schedule, image=name, namespace=namespace)
    files = build_files(platform, deployment)
    shown = target.relative_to(settings.root) if target.is_relative_to(settings.root) else target
    another = shlex.join(["headrace", "deploy", platform, "--out", f"{shown}-2"])
    root = os.path.relpath(settings.root, target)
    written = write_new(
        {
            target / name: text.replace("{folder}", str(shown)).replace("{root}", root)
            for name, text in files.items()
        },
        f"remove it, or write to another folder:   {another}",
    )
    steps = _steps(platform, deployment.name, name, shown, deployment.variables, schedule)
    lines = ["Wrote", *(f"  {file}" for file in written), "Next", *(f"  {step}" for step in steps)]
    data = {"paths": [str(file) for file in written], "variables": deployment.variables, "next": steps}
    return Result(data=data, text="\n".join(lines))


def _steps(
    platform: Platform, name: str, image: str, folder: Path, variables: list[str], schedule: str | None
) -> list[str]:
    build = f"docker build -f {folder}/Dockerfile -t {image} ."
    match platform:
        case "systemd":
            unit = f"{name}.{'timer' if schedule else 'service'}"
            return [
                f"sudo cp {folder}/{name}.* /etc/systemd/system/",
                *([f"write {', '.join(variables)} into /etc/headrace/{name}.env"] if variables else []),
                f"sudo systemctl daemon-reload && sudo systemctl enable --now {unit}",
            ]
        case "compose":
            return [f"docker compose -f {folder}/compose.yaml up --build"]
        case "kubernetes":
            literals = " ".join(f'--from-literal={one}="${one}"' for one in variables)
            secret = [f"kubectl create secret generic {name}-secrets {literals}"] if variables else []
            return [build, f"docker push {image}", *secret, f"kubectl apply -f {folder}/kubernetes.yaml"]
