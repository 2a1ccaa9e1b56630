"""Which Java is used, and what the user is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import JavaUnsuitableError
from headrace.runtime import java
from headrace.runtime.java import find_java


def make_java(home: Path, version: str) -> Path:
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text("#!/bin/sh\n")
    (home / "bin" / "java").chmod(0o755)
    (home / "release").write_text(f'JAVA_VERSION="{version}"\n')
    return home


def test_a_suitable_java_home_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java(tmp_path / "jdk", "21.0.4")))
    found = find_java()
    assert (found.origin, found.version, found.major) == ("JAVA_HOME", "21.0.4", 21)
    assert found.trust_options() == ()


def test_without_java_home_the_wheel_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    found = find_java()
    assert found.origin == "wheel"
    assert found.major >= 25
    assert found.passed_over is None


@pytest.mark.parametrize("version", ["11.0.2", "1.8.0_412"])
def test_an_old_java_home_is_passed_over_and_said(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = make_java(tmp_path / "jdk", version)
    monkeypatch.setenv("JAVA_HOME", str(home))
    found = find_java()
    assert found.origin == "wheel"
    assert found.passed_over is not None
    assert version in found.passed_over


def test_a_java_home_without_java_is_passed_over_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    assert str(tmp_path / "nothing") in (find_java().passed_over or "")


def test_no_suitable_java_at_all_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = make_java(tmp_path / "jdk", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setattr(java, "_wheel_home", lambda: (None, "the wheel is not installed"))
    with pytest.raises(JavaUnsuitableError) as caught:
        find_java()
    assert caught.value.params == {"java_home": str(home), "minimum": 17}
