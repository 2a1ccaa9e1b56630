"""`headrace submit`: the command of spark-submit for a run."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from headrace.runtime import storage_support, submit
from unit.cli.conftest import Call

JAR, S3_JAR = Path("/jars/delta.jar"), Path("/jars/hadoop-aws.jar")


@pytest.fixture(autouse=True)
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(submit, "ensure_jars", lambda _: (JAR,))
    monkeypatch.setattr(storage_support, "ensure_jars", lambda _: (S3_JAR,))
    spec = {
        "name": "shop",
        "storage": "/srv/lake",
        "kafka": {"bootstrap.servers": "broker.example:9092"},
        "profiles": {
            name: {
                "runtime": {"master": master, "memory": "2g"},
                "configuration": {"spark.executor.cores": "2", "spark.my.password": "pl4nted", **more},
            }
            for name, master, more in (
                ("prod", "spark://master.example:7077", {"spark.jars": "/mine.jar"}),
                ("yarn", "yarn", {}),
                ("k8s", "k8s://https://api.example", {}),
            )
        },
    }
    (tmp_path / "headrace.yml").write_text(json.dumps(spec))
    (tmp_path / "shop.py").write_text("")
    return tmp_path


def settings_of(command: list[str]) -> dict[str, str]:
    given = [command[index + 1] for index, word in enumerate(command) if word == "--conf"]
    return dict(one.split("=", 1) for one in given)


def test_the_command_has_settings_jars_and_python_but_no_secrets(headrace: Call, pipeline: Path) -> None:
    done = headrace(
        "submit", "--profile", "prod", "orders", "--continuous", "--log-level", "debug", "--print", "--json"
    )
    command: list[str] = done.data["command"]
    assert command[:3] == ["spark-submit", "--master", "spark://master.example:7077"]
    assert command[3:9] == ["--deploy-mode", "client", "--name", "shop", "--driver-memory", "2g"]
    settings = settings_of(command)
    assert settings["spark.jars"] == f"{JAR},/mine.jar"
    assert settings["spark.sql.extensions"] == "io.delta.sql.DeltaSparkSessionExtension"
    assert settings["spark.executor.cores"] == "2"
    assert settings["spark.pyspark.driver.python"] == settings["spark.pyspark.python"] == sys.executable
    run = command[next(i for i, word in enumerate(command) if word.endswith("__main__.py")) + 1 :]
    named = ["run", "--project", str(pipeline / "headrace.yml"), "--profile", "prod"]
    assert run == [*named, "orders", "--continuous", "--log-level", "debug"]
    assert "pl4nted" not in done.out and done.data["secret_settings"] == ["spark.my.password"]
    text = headrace("submit", "--profile", "prod", "--print").out
    assert "pl4nted" not in text and "--properties-file FILE" in text


def test_the_run_gets_secrets_in_a_file_and_gives_its_exit_code(
    headrace: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "home" / "bin" / "spark-submit"
    script.parent.mkdir(parents=True)
    script.write_text(
        "#!/bin/sh\n"
        'while [ "$1" != --properties-file ]; do shift; done\n'
        f'ls -l "$2" > {tmp_path}/kept; cat "$2" >> {tmp_path}/kept; echo "$2" > {tmp_path}/name; exit 3\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "home"))
    assert headrace("submit", "--profile", "prod").exit_code == 3
    kept = (tmp_path / "kept").read_text()
    assert kept.startswith("-rw------- ") and kept.endswith("\nspark.my.password=pl4nted\n")
    assert not Path((tmp_path / "name").read_text().strip()).exists()


def test_cluster_mode_needs_a_cluster_that_starts_python_drivers(headrace: Call, pipeline: Path) -> None:
    def refused(*arguments: str) -> dict[str, Any]:
        done = headrace("submit", "--json", "--print", *arguments)
        assert done.exit_code == 2
        error: dict[str, Any] = done.data["error"]
        return error

    error = refused("--deploy-mode", "cluster", "--profile", "prod")
    assert error["code"] == "COMMAND_LINE" and "spark://master.example:7077" in error["summary"]
    assert error["remedies"][0] == "headrace submit --deploy-mode client --profile prod"
    here = refused("--deploy-mode", "cluster", "--profile", "yarn", "--set", "storage=lake")
    assert str(pipeline / "lake") in here["summary"]
    embedded = ("--set", "kafka.bootstrap.servers=embedded")
    assert "embedded" in refused("--deploy-mode", "cluster", "--profile", "yarn", *embedded)["summary"]
    assert "--continuos" in refused("--profile", "prod", "--continuos")["summary"]
    assert headrace("submit", "--json", "--profile", "prod").exit_code == 2


def test_cluster_mode_sends_the_pipeline_to_yarn_and_names_files_of_the_image_for_kubernetes(
    headrace: Call, pipeline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def command_for(profile: str) -> list[str]:
        done = headrace("submit", "--profile", profile, "--deploy-mode", "cluster", "--print", "--json")
        command: list[str] = done.data["command"]
        return command

    monkeypatch.setenv("HEADRACE_CACHE", str(pipeline / ".cache"))
    command = command_for("yarn")
    archive, name = settings_of(command)["spark.archives"].split("#")
    assert name == "pipeline" and sorted(zipfile.ZipFile(archive).namelist()) == ["headrace.yml", "shop.py"]
    assert command[-4:] == ["--project", "pipeline/headrace.yml", "--profile", "yarn"]
    command = command_for("k8s")
    assert "local:///opt/headrace/main.py" in command
    assert "/opt/headrace/pipeline/headrace.yml" in command
    jars = settings_of(command)["spark.jars"].split(",")
    assert all(jar.startswith("local:///opt/headrace/jars/") for jar in jars)


def test_a_storage_in_a_bucket_brings_its_jars_and_the_settings_that_fence(headrace: Call) -> None:
    storage = ["--set", "storage=s3://shop-lake/v1", "--print", "--json"]
    client = settings_of(headrace("submit", "--profile", "prod", *storage).data["command"])
    jars = client["spark.jars"].split(",")
    assert jars[:2] == [str(JAR), str(S3_JAR)] and jars[2].endswith("headrace-s3.jar")
    assert client["spark.delta.logStore.s3.impl"] == "io.headrace.s3.S3LogStore"
    assert client["spark.plugins"] == "io.headrace.s3.CredentialsPlugin"
    image = headrace("submit", "--profile", "k8s", "--deploy-mode", "cluster", *storage).data["command"]
    assert "local:///opt/headrace/jars/headrace-s3.jar" in settings_of(image)["spark.jars"].split(",")
