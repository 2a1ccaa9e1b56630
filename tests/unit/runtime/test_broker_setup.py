"""The settings of the embedded broker, as Java reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.runtime.broker_setup import Ports, java_variables, write_properties

PORTS = Ports(9001, 9002)


def test_any_letter_of_the_data_folder_reaches_kafka(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    for name, written in (("Müller", r"M\u00fcller"), ("🙂", r"\ud83d\ude42"), ("a\\b c", r"a\\b c")):
        write_properties(file, tmp_path / name / "data", PORTS)
        assert f"log.dirs={tmp_path}/{written}/data" in file.read_bytes().decode("ascii").splitlines()
    assert Ports.read(file) == PORTS


@pytest.mark.parametrize(("locale", "added"), [("C", "C.UTF-8"), ("de_DE.UTF-8", None), ("en_US.utf8", None)])
def test_java_finds_files_of_any_name_in_any_locale(
    locale: str, added: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LC_ALL", "LC_CTYPE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LANG", locale)
    assert java_variables().get("LC_ALL") == added
    assert java_variables()["LANG"] == locale
