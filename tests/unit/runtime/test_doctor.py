"""The doctor names what is wrong with a machine, and what to do about it."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from stores import object_location

from headrace.errors import StorageAccessError
from headrace.model.project import BrokerChoice, ProjectSettings
from headrace.runtime import doctor
from headrace.runtime.doctor import Check, run_checks
from headrace.runtime.engine import client
from headrace.runtime.jars import Coordinate, Jar, JarCache

MakeProject = Callable[..., ProjectSettings]


@pytest.fixture(autouse=True)
def _empty_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HEADRACE_BROKER_DIR", str(tmp_path / "broker"))
    monkeypatch.delenv("JAVA_HOME", raising=False)


def find(checks: list[Check], name: str) -> Check:
    return next(check for check in checks if check.name == name)


def test_a_fresh_machine_fails_in_nothing_and_is_not_written_to(tmp_path: Path) -> None:
    checks = run_checks()
    assert [check for check in checks if check.state == "fail"] == []
    assert find(checks, "jars").state == "warn"
    assert find(checks, "broker").state == "ok"
    assert not (tmp_path / "cache" / "jars").exists()
    assert not (tmp_path / "broker").exists()


def test_the_engines_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = {"ok": True, "pid": 17, "folder": "/shop", "memory_mb": 900, "sessions": []}
    monkeypatch.setattr(doctor, "is_engine_on", lambda: True)
    for module in (doctor, client):
        monkeypatch.setattr(module, "load_records", lambda: [None])
    monkeypatch.setattr(client, "ask", lambda record, do: answer)
    found = find(run_checks(), "engine")
    assert (found.state, found.text) == ("ok", "process 17 in /shop, 900 MB")


def test_it_says_which_broker_a_pipeline_uses(tmp_path: Path, make_project: MakeProject) -> None:
    choice = BrokerChoice(tmp_path / "shop/.headrace/broker", "pipeline", "shop")
    project = replace(make_project(), broker=choice)
    found = find(run_checks(project), "broker")
    assert (found.state, found.text) == (
        "ok",
        f"stopped; a run starts it; the broker of pipeline shop, {choice.folder}",
    )
    (tmp_path / "shop").write_text("a file")
    found = find(run_checks(project), "broker")
    assert (found.state, str(choice.folder) in found.text) == ("fail", True)
    assert found.remedy is not None and "runtime: {broker: /" in found.remedy


def test_each_warning_has_a_remedy() -> None:
    assert all(check.remedy for check in run_checks() if check.state != "ok")


def test_an_unsuitable_java_home_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    found = find(run_checks(), "java")
    assert found.state == "warn"
    assert str(tmp_path / "nothing") in found.text


def test_a_jar_that_is_not_the_locked_one_is_found_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jar = Jar(Coordinate("org.example", "one", "1.0"), 3, hashlib.sha256(b"one").hexdigest())
    monkeypatch.setattr(doctor, "locked_jars", lambda *_: (jar,))
    cache = JarCache()
    cache.folder.mkdir(parents=True)
    cache.path(jar).write_text("eno")
    found = find(run_checks(), "jars")
    assert (found.state, "org.example:one:1.0" in found.text) == ("warn", True)
    assert not cache.path(jar).exists()


def test_a_storage_that_cannot_be_a_folder_fails(tmp_path: Path, make_project: MakeProject) -> None:
    (tmp_path / "lake").write_text("a file")
    found = find(run_checks(make_project()), "storage")
    assert found.state == "fail"
    assert found.remedy is not None


def test_a_storage_that_is_no_folder_of_this_machine_is_read(
    tmp_path: Path, make_project: MakeProject
) -> None:
    project = make_project()
    stored = replace(project, storage=replace(project.storage, root=object_location(tmp_path / "lake")))
    text = f"memory://{tmp_path}/lake; its conditional writes hold"
    assert find(run_checks(stored), "storage") == Check("storage", "ok", text)


def test_a_store_that_refuses_the_access_says_what_to_correct(
    tmp_path: Path, make_project: MakeProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, root = make_project(), object_location(tmp_path / "lake")

    def refuse(*_: object) -> str:
        raise StorageAccessError(
            "s3://b cannot be used: refused",
            facts=("path s3://b/x", "the store's answer: AccessDenied"),
            remedies=("check the permissions:   headrace doctor",),
        )

    monkeypatch.setattr(type(root.files), "find_unsafe", refuse)
    stored = replace(project, storage=replace(project.storage, root=root))
    text = "[STORAGE_ACCESS_REFUSED] s3://b cannot be used: refused; the store's answer: AccessDenied"
    # The remedy does not name the command that has just run.
    assert find(run_checks(stored), "storage") == Check("storage", "fail", text, "check the permissions")


def test_the_doctor_needs_no_pyspark() -> None:
    code = (
        "import sys; from headrace.runtime.doctor import run_checks; run_checks();"
        " sys.exit('pyspark' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_cluster_that_does_not_answer_is_named_in_seconds(
    tmp_path: Path, make_project: MakeProject
) -> None:
    found = find(run_checks(make_project("127.0.0.1:9, nowhere.invalid:9092")), "kafka")
    assert found.state == "fail"
    assert "127.0.0.1:9: Connection refused" in found.text
    assert "nowhere.invalid:9092" in found.text
    assert str(tmp_path / "headrace.yml") in str(found.remedy)
