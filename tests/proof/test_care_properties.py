"""The table properties of Delta and Databricks for the care of tables: each does what it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from headrace.project.maintenance import MaintenanceOptions, MaintenanceResult
from headrace.project.pipeline import Pipeline
from landing import Site

PROPERTIES = {
    "plain": {},
    "by_hand": {"delta.autoOptimize.autoCompact": "false"},
    "unmanaged": {"pipelines.autoOptimize.managed": "false"},
    "ordered": {"delta.autoOptimize.autoCompact": "false", "pipelines.autoOptimize.zOrderCols": "id"},
    "tiny": {"delta.targetFileSize": "1kb"},
    "few": {"delta.autoOptimize.autoCompact": "false", "delta.autoOptimize.optimizeWrite": "true"},
    "unindexed": {"delta.dataSkippingNumIndexedCols": "0"},
    "short": {
        "delta.autoOptimize.autoCompact": "false",
        "delta.deletedFileRetentionDuration": "interval 0 seconds",
        "delta.logRetentionDuration": "interval 0 seconds",
        "delta.checkpointInterval": "2",
    },
}
TABLE = """
@hr.table(partition_cols=["page"], maintenance={{"small_files": 3}}, table_properties={properties})
def {name}():
    return hr.read_files("landing", format="json", schema="id LONG, page STRING").drop("_source")
"""


def compactions(site: Site, name: str) -> list[dict[str, Any]]:
    history = DeltaTable(str(site.storage.table(site.name(name)))).history()
    return [one for one in history if one["operation"] == "OPTIMIZE"]


def smallest_ids(site: Site, name: str) -> set[int | None]:
    """The minimum of the column `id` of each file, as the log has it."""
    found = pa.table(DeltaTable(str(site.storage.table(site.name(name)))).get_add_actions(flatten=True))
    return set(found["min.id"].to_pylist()) if "min.id" in found.column_names else {None}


def files(site: Site, name: str) -> int:
    return len(DeltaTable(str(site.storage.table(site.name(name)))).file_uris())


@pytest.mark.proof
def test_each_property_does_what_it_says(tmp_path: Path, spark: object) -> None:
    site = Site(tmp_path / "site")
    tables = (TABLE.format(name=name, properties=held) for name, held in PROPERTIES.items())
    site.write("import headrace as hr\n" + "".join(tables))
    for number in range(5):
        for half in range(2):
            # Two files are two tasks: without `optimizeWrite`, each writes a file of its own.
            site.put(f"{number}-{half}.json", *({"id": 2 * number + half, "page": "a"} for _ in range(50)))
        site.run_well()

    # Runs compact what nothing forbids, up to the target size.
    assert len(compactions(site, "plain")) > 0
    for name in ("by_hand", "unmanaged", "ordered", "tiny", "few", "short"):
        assert not compactions(site, name), name
    assert None not in smallest_ids(site, "plain")
    assert compactions(site, "unindexed") and smallest_ids(site, "unindexed") == {None}
    assert files(site, "few") == 5 <= files(site, "by_hand")

    with Pipeline.load(site.root) as pipeline:
        found = pipeline.maintain(options=MaintenanceOptions(steps=("optimize", "vacuum", "log")))
    done: dict[str, MaintenanceResult] = {one.table.name: one for one in found}
    assert not any(one.warning for one in found), found
    assert "optimize" in done["by_hand"].steps and files(site, "by_hand") == 1
    assert done["unmanaged"].steps == () and done["tiny"].steps == ()
    (ordered,) = compactions(site, "ordered")
    assert json.loads(ordered["operationParameters"]["zOrderBy"]) == ["id"]
    # The vacuum deletes the files that the compaction has replaced, too, where nothing keeps them.
    short = done["short"]
    assert set(short.steps) == {"optimize", "vacuum", "log"} and "log" not in done["by_hand"].steps
    assert short.after is not None and short.after.stored_files == 1
    assert done["by_hand"].steps == done["ordered"].steps == ("optimize",)
    proof = site.verify()
    assert proof.proven, proof.to_json()
