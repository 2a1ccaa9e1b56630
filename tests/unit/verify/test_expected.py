"""Tables that vanished or were replaced: checkpoints, ledger and the last plan name what must be there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from lake import HandFlow, Lake, LakeTable, rows

from headrace.errors import NothingToVerifyError
from headrace.model.names import TableName

Verify = Any


@pytest.fixture
def other(lake: Lake) -> LakeTable:
    """A table that stays as it is."""
    table = lake.table("other")
    table.flow().append({0: (0, 10)})
    return table


@pytest.fixture
def flow(lake: Lake, other: LakeTable) -> HandFlow:
    flow = lake.table("orders").flow()
    flow.append({0: (0, 10)})
    return flow


def write_plan(lake: Lake, *, flows: tuple[str, ...] = (), views: tuple[str, ...] = (), **more: Any) -> None:
    plan = {
        "headrace": 1,
        "flows": [{"flow": name, "dataset": ["default", name]} for name in flows],
        "views": [{"view": ["default", name]} for name in views],
        **more,
    }
    lake.storage.plans.mkdir(parents=True)
    (lake.storage.plans / "last.json").write_text(json.dumps(plan))


def replace_by_foreign(table: LakeTable) -> None:
    """Somebody else's Delta table, where one of ours was."""
    shutil.rmtree(table.path)
    table.log.mkdir(parents=True)
    table.version, table.id, table.properties = -1, "foreign", {}
    table.commit([table.metadata(), table.write(rows(range(3)))], operation="CREATE TABLE AS SELECT")


def codes(verify: Verify) -> list[str]:
    proof = verify()
    assert proof.exit_code == (1 if proof.findings else 0)
    return [finding.code for finding in proof.findings]


class TestMissing:
    @pytest.mark.parametrize("removed", [".", "_delta_log"])
    def test_a_table_that_was_removed_is_a_finding(
        self, flow: HandFlow, verify: Verify, removed: str
    ) -> None:
        shutil.rmtree(flow.table.path / removed)
        assert codes(verify) == ["TABLE_MISSING"]
        (finding,) = verify.dataset("orders").findings
        assert "tables/default/orders has no Delta log. Its checkpoint still exists" in finding.text
        note = verify.dataset("orders").notes[0]
        assert note.startswith("read it again: headrace full-refresh orders; if it was removed on purpose")
        assert "/lake/checkpoints/default.orders and " in note and note.endswith(
            "/lake/ledger/default.orders"
        )

    def test_its_commits_were_removed_from_the_log(self, flow: HandFlow, verify: Verify) -> None:
        for commit in flow.table.log.iterdir():
            commit.unlink()
        assert codes(verify) == ["TABLE_MISSING"]

    def test_the_ledger_alone_names_it(self, flow: HandFlow, verify: Verify) -> None:
        flow.table.fold("orders", 0, 2, flow.said)
        shutil.rmtree(flow.table.storage.root / "checkpoints" / "default.orders")
        shutil.rmtree(flow.table.path)
        assert codes(verify) == ["TABLE_MISSING"]

    def test_a_table_that_is_named_on_the_command_line(self, flow: HandFlow, verify: Verify) -> None:
        shutil.rmtree(flow.table.path)
        proof = verify(datasets=[TableName("default", "orders")])
        assert [finding.code for finding in proof.findings] == ["TABLE_MISSING"]

    def test_no_table_is_left(self, lake: Lake, flow: HandFlow, verify: Verify) -> None:
        shutil.rmtree(lake.storage.tables)
        assert codes(verify) == ["TABLE_MISSING", "TABLE_MISSING"]

    def test_a_view_that_was_refreshed(self, lake: Lake, other: LakeTable, verify: Verify) -> None:
        view = lake.table("revenue", kind="materialized_view", coordinates=False)
        view.record_view()
        assert codes(verify) == []
        shutil.rmtree(view.path)
        assert codes(verify) == ["TABLE_MISSING"]

    def test_a_table_of_another_pipeline_is_its_own_affair(
        self, lake: Lake, other: LakeTable, verify: Verify
    ) -> None:
        foreign = lake.table("foreign", properties={"headrace.pipeline": "another"})
        flow = foreign.flow()
        flow.append({0: (0, 10)})
        foreign.fold("foreign", 0, 2, flow.said)
        shutil.rmtree(foreign.path)
        assert codes(verify) == []
        assert [one.dataset.name for one in verify().datasets] == ["other"]


class TestReplaced:
    def test_a_foreign_table_is_a_finding(self, flow: HandFlow, verify: Verify) -> None:
        replace_by_foreign(flow.table)
        assert codes(verify) == ["TABLE_REPLACED"]
        assert "no pipeline has written this table" in verify.dataset("orders").findings[0].text

    def test_a_foreign_table_where_a_view_was_planned(
        self, lake: Lake, other: LakeTable, verify: Verify
    ) -> None:
        replace_by_foreign(lake.table("revenue", kind="materialized_view", coordinates=False))
        assert codes(verify) == [], "nothing names it"
        write_plan(lake, views=("revenue",))
        assert codes(verify) == ["TABLE_REPLACED"]

    def test_a_table_of_another_pipeline(self, flow: HandFlow, verify: Verify) -> None:
        flow.table.properties["headrace.pipeline"] = "another"
        flow.table.commit([flow.table.metadata()], operation="SET TBLPROPERTIES")
        assert codes(verify) == ["TABLE_REPLACED"]
        assert "pipeline another has written this table" in verify.dataset("orders").findings[0].text

    def test_a_table_of_the_same_pipeline_with_another_id(self, flow: HandFlow, verify: Verify) -> None:
        flow.table.id = "another"
        flow.table.commit([flow.table.metadata()], operation="CREATE OR REPLACE TABLE")
        assert "TABLE_REPLACED" in codes(verify)

    def test_a_full_refresh_opens_a_checkpoint_for_the_new_table(
        self, flow: HandFlow, verify: Verify
    ) -> None:
        table = flow.table
        left = table.flow("left")
        left.append({1: (0, 5)})
        table.id = "another"
        flow.open("full-refresh", clear=True)
        flow.append({0: (0, 10)})
        assert "TABLE_REPLACED" not in codes(verify), (
            "a flow that is not declared any more keeps its checkpoint"
        )


class TestNotCreatedYet:
    def test_an_empty_log_that_nothing_names(self, lake: Lake, other: LakeTable, verify: Verify) -> None:
        (lake.storage.table(TableName("default", "orders")) / "_delta_log").mkdir(parents=True)
        assert codes(verify) == []
        report = verify.dataset("orders").table
        assert (report.verdict, report.text) == ("unjudged", "not created yet")

    def test_a_table_that_only_the_plan_names(self, lake: Lake, other: LakeTable, verify: Verify) -> None:
        write_plan(lake, flows=("orders",), views=("revenue",))
        assert codes(verify) == []
        assert verify.dataset("revenue").table.text == "not created yet"

    def test_a_plan_of_another_pipeline(self, lake: Lake, other: LakeTable, verify: Verify) -> None:
        write_plan(lake, flows=("orders",), pipeline="another")
        assert [one.dataset.name for one in verify().datasets] == ["other"]

    @pytest.mark.parametrize("text", ["{ not json", "[]", '{"flows": [{"flow": "a"}], "views": [3]}'])
    def test_a_plan_that_cannot_be_read(
        self, lake: Lake, other: LakeTable, verify: Verify, text: str
    ) -> None:
        write_plan(lake)
        (lake.storage.plans / "last.json").write_text(text)
        assert codes(verify) == []

    def test_nothing_has_been_created(self, lake: Lake, verify: Verify) -> None:
        write_plan(lake, flows=("orders",))
        with pytest.raises(NothingToVerifyError):
            verify()


def test_a_table_that_is_declared_no_more_is_still_judged(lake: Lake, flow: HandFlow, verify: Verify) -> None:
    write_plan(lake, flows=("other",))
    assert codes(verify) == []
    assert [one.dataset.name for one in verify().datasets] == ["orders", "other"]
    path: Path = flow.table.path
    next(path.glob("*.parquet")).unlink()
    assert "FILE_MISSING" in codes(verify)
