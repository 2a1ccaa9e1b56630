"""Packages for executors: which ones are sent, and how executors find them."""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path

import pytest

from headrace.errors import SourceLocation, SpecInvalidError
from headrace.runtime.submit import PYTHON, find_distributions, package_settings, python_of


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with installed packages."""
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    folder = tmp_path / "site"
    monkeypatch.syspath_prepend(str(folder))
    for name, requires in (
        ("Fruit_Salad", ["hr-apple>=1", "pyspark", "hr-other; extra == 'x'"]),
        ("hr-apple", []),
    ):
        module = name.lower().replace("-", "_")
        (folder / module).mkdir(parents=True)
        (folder / module / "__init__.py").write_text(f"NAME = {name!r}\n")
        info = folder / f"{module}-1.0.dist-info"
        info.mkdir()
        lines = [
            f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0",
            *(f"Requires-Dist: {one}" for one in requires),
        ]
        (info / "METADATA").write_text("\n".join(lines) + "\n")
        (info / "RECORD").write_text(f"{module}/__init__.py,,\n../../bin/{module},,\n")
    return folder


def test_a_package_is_sent_with_those_that_it_needs_but_spark() -> None:
    settings = package_settings(
        ["fruit-salad"], {"spark.archives": "mine.zip", "spark.executorEnv.PYTHONPATH": "x"}
    )
    mine, _, sent = settings["spark.archives"].partition(",")
    archive, _, folder = sent.partition("#")
    assert mine == "mine.zip"
    assert settings["spark.executorEnv.PYTHONPATH"] == f"{folder}{os.pathsep}x"
    assert sorted(zipfile.ZipFile(archive).namelist()) == ["fruit_salad/__init__.py", "hr_apple/__init__.py"]
    before = Path(archive).stat().st_mtime_ns
    assert package_settings(["fruit-salad"], {})["spark.archives"] == sent
    assert Path(archive).stat().st_mtime_ns == before


def test_a_version_that_is_installed_again_with_other_code_is_sent_again(site: Path) -> None:
    sent = package_settings(["fruit-salad"], {})["spark.archives"]
    record = site / "fruit_salad-1.0.dist-info" / "RECORD"
    record.write_text(record.read_text().replace("__init__.py,,", "__init__.py,sha256=other,9"))
    assert package_settings(["fruit-salad"], {})["spark.archives"] != sent


def test_nothing_is_sent_by_default() -> None:
    assert package_settings([], {}) == {}


def test_a_package_that_cannot_be_sent_is_refused_with_its_line(site: Path) -> None:
    line = SourceLocation("headrace.yml", 7)
    with pytest.raises(SpecInvalidError) as missing:
        find_distributions(["hr-pear"], line)
    assert missing.value.location == line and missing.value.remedies == ("pip install hr-pear",)
    (site / "hr_apple-1.0.dist-info" / "direct_url.json").write_text('{"dir_info": {"editable": true}}')
    with pytest.raises(SpecInvalidError, match="does not list its files"):
        find_distributions(["fruit-salad"], line)


def test_workers_use_the_python_that_the_settings_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert python_of({}) == sys.executable
    monkeypatch.setenv("PYSPARK_PYTHON", "python3.12")
    assert python_of({}) == "python3.12"
    assert python_of({PYTHON: "python3.11"}) == "python3.11"
