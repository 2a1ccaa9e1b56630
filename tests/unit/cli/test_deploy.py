"""`headrace deploy`: the files are valid, hold no secret, and start what they say."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from headrace.runtime.kubernetes_executor import build_executor_command
from unit.cli.conftest import Call

SECRET = "pl4nted"
AWS = [
    *("AWS_ACCESS_KEY_ID", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_SECRET_ACCESS_KEY"),
    "AWS_SESSION_TOKEN",
]
KUBERNETES = ("1.28", "1.34")


@pytest.fixture(autouse=True)
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KAFKA_PASSWORD", SECRET)
    spec = {
        "name": "Shop_1",
        "kafka": {"bootstrap.servers": "broker.example:9092", "sasl.password": "${KAFKA_PASSWORD}"},
        "profiles": {"prod": {"storage": "${LAKE:-/srv/lake}", "cluster": {"packages": ["pandas"]}}},
    }
    (tmp_path / "headrace.yml").write_text(json.dumps(spec))
    return tmp_path


def deploy(headrace: Call, *arguments: str) -> dict[str, str]:
    """The files that the command writes, by their names."""
    done = headrace("deploy", *arguments, "--profile", "prod", "--json")
    assert done.exit_code == 0, done
    of_aws = AWS if os.environ.get("LAKE", "").startswith("s3:") and "systemd" not in arguments else []
    assert done.data["variables"] == [*of_aws, "KAFKA_PASSWORD", "LAKE"]
    files = {Path(path).name: Path(path).read_text() for path in done.data["paths"]}
    assert all(SECRET not in text for text in files.values())
    return files


def documents(text: str) -> dict[str, Any]:
    return {one["kind"]: one for one in yaml.safe_load_all(text)}


def container(template: Any) -> Any:
    return template["spec"]["containers"][0]


@pytest.mark.parametrize("schedule", [(), ("--schedule", "*/15 * * * *")], ids=["continuous", "triggered"])
def test_the_manifests_are_valid(headrace: Call, schedule: tuple[str, ...]) -> None:
    found = documents(deploy(headrace, "kubernetes", "--namespace", "shops", *schedule)["kubernetes.yaml"])
    executor = yaml.safe_load(found["ConfigMap"]["data"]["pod.yaml"])
    for version in KUBERNETES:
        for one in (*found.values(), executor):
            kubernetes_validate.validate(one, version, strict=True)
    names = {(one["metadata"]["name"], one["metadata"]["namespace"]) for one in found.values()}
    assert names == {("shop-1", "shops")}
    shared = {"ServiceAccount", "Role", "RoleBinding", "PersistentVolumeClaim", "ConfigMap", "Service"}
    assert found.keys() == shared | {"CronJob" if schedule else "Deployment"}


def test_the_driver_runs_the_pipeline_and_is_probed(headrace: Call) -> None:
    found = documents(deploy(headrace, "kubernetes")["kubernetes.yaml"])
    template = found["Deployment"]["spec"]["template"]
    driver = container(template)
    named = [
        "--project",
        "/opt/headrace/pipeline/headrace.yml",
        "--profile",
        "prod",
        "--storage",
        "/srv/lake",
    ]
    assert driver["args"][:7] == ["run", *named] and driver["args"][-1] == "--continuous"
    assert driver["livenessProbe"]["exec"]["command"] == ["headrace", "status", *named, "--check"]
    references = {
        one["name"]: one["valueFrom"] for one in driver["env"] if "secretKeyRef" in one["valueFrom"]
    }
    assert references.keys() == {"KAFKA_PASSWORD", "LAKE"}
    assert references["KAFKA_PASSWORD"]["secretKeyRef"]["name"] == "shop-1-secrets"
    service = found["Service"]["spec"]
    assert service["selector"].items() <= template["metadata"]["labels"].items()
    assert "configuration.spark.driver.host=shop-1.default.svc" in driver["args"]
    executor = yaml.safe_load(found["ConfigMap"]["data"]["pod.yaml"])
    for one in (driver, container(executor)):
        assert {"name": "storage", "mountPath": "/srv/lake"} in one["volumeMounts"]
    # A driver must not be its own executor's service target.
    assert not service["selector"].items() <= executor["metadata"]["labels"].items()


def test_the_settings_that_the_driver_gets_are_those_of_the_spec(headrace: Call) -> None:
    driver = container(
        documents(deploy(headrace, "kubernetes")["kubernetes.yaml"])["Deployment"]["spec"]["template"]
    )
    arguments = [one for one in driver["args"][1:] if one != "--continuous"]
    given = arguments[arguments.index("--set") :]
    done = headrace("submit", "--profile", "prod", *given, "--deploy-mode", "cluster", "--print", "--json")
    assert done.data["command"][2] == "k8s://https://kubernetes.default.svc"


def test_a_scheduled_run_ends_and_is_not_probed(headrace: Call) -> None:
    found = documents(deploy(headrace, "kubernetes", "--schedule", "@hourly")["kubernetes.yaml"])
    template = found["CronJob"]["spec"]["jobTemplate"]["spec"]["template"]
    assert template["spec"]["restartPolicy"] == "Never"
    assert "--continuous" not in container(template)["args"] and "livenessProbe" not in container(template)


def test_the_entry_point_starts_headrace_and_executors(
    headrace: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dockerfile = deploy(headrace, "compose")["Dockerfile"]
    assert f"FROM python:3.{sys.version_info.minor}-slim" in dockerfile and " pandas\n" in dockerfile
    script = re.search(r"^RUN (printf .*?)\nCOPY", dockerfile, re.M | re.S)
    assert script is not None
    image = tmp_path / "image"
    image.mkdir()
    subprocess.run(["sh", "-ec", script[1].replace("/opt/headrace", str(image))], check=True)
    assert (image / "main.py").read_text() == "from headrace.cli.main import main\nmain()\n"
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("headrace", "python"):
        (programs / name).write_text(f'#!/bin/sh\necho {name} "$@"\nexit 3\n')
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")

    def started(*arguments: str) -> tuple[int, str]:
        done = subprocess.run([image / "entrypoint", *arguments], capture_output=True, text=True)
        return done.returncode, done.stdout.strip()

    assert started("run", "--profile", "a b") == (3, "headrace run --profile a b")
    assert started("executor") == (3, "python -m headrace.runtime.kubernetes_executor")


def test_an_executor_gets_what_spark_says_in_the_environment() -> None:
    environment = {
        "SPARK_JAVA_OPT_10": "-Dc=3",
        "SPARK_JAVA_OPT_2": "-Db=2",
        "SPARK_JAVA_OPT_0": "--add-modules=jdk.incubator.vector",
        "SPARK_EXECUTOR_MEMORY": "512m",
        "SPARK_DRIVER_URL": "spark://driver",
        "SPARK_EXECUTOR_ID": "1",
        "SPARK_EXECUTOR_CORES": "2",
        "SPARK_APPLICATION_ID": "app",
        "SPARK_EXECUTOR_POD_IP": "10.0.0.1",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_EXECUTOR_POD_NAME": "shop-exec-1",
    }
    command = build_executor_command("java", "a.jar:b.jar", environment)
    assert command[:7] == ["java", "-Db=2", "-Dc=3", "-Xms512m", "-Xmx512m", "-cp", "a.jar:b.jar"]
    assert command[8:12] == ["--driver-url", "spark://driver", "--executor-id", "1"]


def test_the_unit_of_systemd_starts_this_installation(headrace: Call, pipeline: Path) -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(deploy(headrace, "systemd")["shop-1.service"])
    service = unit["Service"]
    program, *arguments = shlex.split(service["ExecStart"])
    assert Path(program) == Path(sys.executable).with_name("headrace")
    assert arguments == [
        "run",
        "--project",
        str(pipeline / "headrace.yml"),
        "--profile",
        "prod",
        "--continuous",
    ]
    assert (service["Restart"], service["RestartPreventExitStatus"]) == ("on-failure", "2")
    assert service["EnvironmentFile"] == "-/etc/headrace/shop-1.env"
    files = deploy(headrace, "systemd", "--schedule", "hourly", "--out", "timer")
    assert files.keys() == {"shop-1.service", "shop-1.timer"}
    assert "OnCalendar=hourly" in files["shop-1.timer"] and "--continuous" not in files["shop-1.service"]


def test_compose_takes_variables_from_the_environment(headrace: Call) -> None:
    service = yaml.safe_load(deploy(headrace, "compose", "--out", "a/b")["compose.yaml"])["services"][
        "pipeline"
    ]
    assert service["environment"] == ["KAFKA_PASSWORD", "LAKE"]
    assert service["build"] == {"context": "../..", "dockerfile": "a/b/Dockerfile"}
    assert service["healthcheck"]["test"][:3] == ["CMD", "headrace", "status"]


def test_the_image_has_no_rows_and_a_storage_in_a_bucket_is_no_volume(
    headrace: Call, pipeline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKE", "data/tables")
    (pipeline / "headrace.yml").write_text((pipeline / "headrace.yml").read_text() + " # not ${USED}")
    files = deploy(headrace, "compose", "--out", "local")
    assert files["Dockerfile.dockerignore"].splitlines()[-1] == "data/tables"
    assert "ensure_jars('spark')" in files["Dockerfile"]
    monkeypatch.setenv("LAKE", "s3://lake/shop")
    files = deploy(headrace, "compose", "--out", "bucket")
    service = yaml.safe_load(files["compose.yaml"])["services"]["pipeline"]
    assert "volumes" not in service and "--storage" not in str(service)
    assert set(AWS) <= set(service["environment"]), "a container has no files of AWS's tools"
    assert "data" not in files["Dockerfile.dockerignore"]
    assert "headrace[s3]" in files["Dockerfile"] and "ensure_jars('spark', 's3')" in files["Dockerfile"]
    assert "s3.spark.JAR, '/opt/headrace/jars'" in files["Dockerfile"]
    found = documents(deploy(headrace, "kubernetes", "--out", "bucket-2")["kubernetes.yaml"])
    assert "PersistentVolumeClaim" not in found
    driver = found["Deployment"]["spec"]["template"]
    assert set(AWS) <= {one["name"] for one in container(driver)["env"]}
    assert "s3://lake/shop" in container(driver)["args"] and "PersistentVolumeClaim" not in str(driver)


def test_existing_files_are_kept(headrace: Call) -> None:
    deploy(headrace, "systemd")
    error = headrace("deploy", "systemd", "--profile", "prod", "--json").data["error"]
    assert error["code"] == "FILE_EXISTS"
    assert error["remedies"][0].endswith("headrace deploy systemd --out deploy-2 --profile prod")
    assert headrace("deploy", "compose", "--out", "/elsewhere", "--profile", "prod").exit_code == 2
