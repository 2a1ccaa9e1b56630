"""Where things lie in a storage."""

from __future__ import annotations

from pathlib import Path

from headrace.storage.layout import Storage


def test_a_pipeline_within_the_storage_has_a_record_of_its_own(tmp_path: Path) -> None:
    storage = Storage.at(tmp_path / "lake")
    names = {
        folder: storage.last_plan(tmp_path / folder).name
        for folder in ("shop", "lake/ingest", "lake/ingest/trial")
    }
    assert names == {
        "shop": "last.json",
        "lake/ingest": "ingest-last.json",
        "lake/ingest/trial": "ingest-trial-last.json",
    }
