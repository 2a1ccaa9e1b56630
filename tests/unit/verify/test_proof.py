"""The report as a whole: what is found, what is demanded, and what it ends in."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import pytest
from lake import Lake, rows

from checked_json import check_data
from headrace.errors import NothingToVerifyError, TableUnknownError
from headrace.model.names import TableName
from headrace.verify import evidence
from headrace.verify.report import proof_lines

Verify = Any
Broker = Any


def view(lake: Lake, name: str, content: Any, **inputs: Any) -> Any:
    table = lake.table(name, kind="materialized_view", coordinates=False)
    refresh(table, content, **inputs)
    return table


def refresh_words(table: Any, **inputs: Any) -> dict[str, Any]:
    return {
        "headrace": 1,
        "pipeline": "shop",
        "view": str(table.name),
        "update": "u1",
        "definition": "abc",
        "inputs": {
            f"default.{name}": {"table_id": one.id, "version": version}
            for name, (one, version) in inputs.items()
        },
    }


def refresh(table: Any, content: Any, **inputs: Any) -> None:
    removed = [table.remove(add) for add in table.active()]
    words = refresh_words(table, **inputs)
    table.commit([*removed, table.write(content)], operation="WRITE", metadata=words)


class TestViews:
    def test_a_view_of_the_latest_versions(self, lake: Lake, verify: Verify) -> None:
        bronze = lake.table()
        bronze.flow().append({0: (0, 10)})
        view(lake, "gold", rows(range(3)), bronze=(bronze, 2))
        judged = verify.dataset("gold")
        assert judged.view.fresh
        assert judged.view.text == "recomputed from default.bronze v2, the latest"
        assert judged.table.text == "3 rows in 1 file = 3 by refreshes"
        assert verify().proven

    def test_a_view_whose_input_has_moved_on_is_stale_and_no_fault(self, lake: Lake, verify: Verify) -> None:
        bronze = lake.table()
        flow = bronze.flow()
        flow.append({0: (0, 10)})
        view(lake, "gold", rows(range(3)), bronze=(bronze, 2))
        flow.append({0: (10, 20)})
        judged = verify.dataset("gold")
        assert not judged.view.fresh
        assert judged.view.text == "recomputed from default.bronze v2; since then default.bronze has v3"
        assert verify().proven

    def test_a_version_that_changes_no_rows_makes_no_view_stale(self, lake: Lake, verify: Verify) -> None:
        bronze = lake.table()
        flow = bronze.flow()
        flow.append({0: (0, 10)})
        view(lake, "gold", rows(range(3)), bronze=(bronze, 2))
        bronze.rewrite(bronze.active(), rows(range(10)))
        flow.append({})
        assert verify.dataset("gold").view.fresh

    def test_an_input_that_was_created_anew_is_told(self, lake: Lake, verify: Verify) -> None:
        bronze = lake.table()
        bronze.flow().append({0: (0, 10)})
        view(lake, "gold", rows(range(3)), bronze=(bronze, 2))
        said = bronze.id
        path = bronze.log / f"{0:020d}.json"
        path.write_text(path.read_text().replace(said, "another"))
        (bronze.log / f"{1:020d}.json").unlink()
        (bronze.log / f"{2:020d}.json").unlink()
        assert "created again" in verify.dataset("gold").view.text

    def test_a_refreshed_view_holds_the_last_refresh_only(self, lake: Lake, verify: Verify) -> None:
        bronze = lake.table()
        bronze.flow().append({0: (0, 10)})
        gold = view(lake, "gold", rows(range(3)), bronze=(bronze, 1))
        refresh(gold, rows(range(5)), bronze=(bronze, 2))
        judged = verify.dataset("gold")
        assert (judged.view.version, judged.view.rows) == (2, 5)
        assert verify().proven

    def test_a_view_that_another_writer_changed_is_found(self, lake: Lake, verify: Verify) -> None:
        bronze = lake.table()
        bronze.flow().append({0: (0, 10)})
        gold = view(lake, "gold", rows(range(3)), bronze=(bronze, 2))
        gold.commit([gold.metadata()], operation="SET TBLPROPERTIES")
        gold.rewrite(gold.active(), rows(range(3)))
        assert verify().proven
        gold.delete([1], gold.active()[0])
        (finding,) = verify().findings
        assert (finding.code, finding.place["version"]) == ("VIEW_CHANGED", 4)
        refresh(gold, rows(range(3)), bronze=(bronze, 2))
        assert verify().proven

    def test_a_row_that_is_gone_from_a_view_is_found(self, lake: Lake, verify: Verify) -> None:
        bronze = lake.table()
        bronze.flow().append({0: (0, 10)})
        gold = view(lake, "gold", rows(range(3)), bronze=(bronze, 2))
        (add,) = gold.active()
        (gold.path / add["path"]).unlink()
        assert not verify().proven


class TestChoice:
    def test_datasets_are_found_in_the_storage(self, lake: Lake, verify: Verify) -> None:
        lake.table("one").flow().append({0: (0, 10)})
        lake.table("two").flow().append({0: (0, 10)})
        lake.table("other", properties={"headrace.pipeline": "another"}).flow().append({0: (0, 3)})
        assert [str(one.dataset) for one in verify().datasets] == ["default.one", "default.two"]
        (chosen,) = verify(datasets=[TableName("default", "two")]).datasets
        assert chosen.dataset.name == "two"

    def test_datasets_come_after_those_that_they_read(self, lake: Lake, verify: Verify) -> None:
        zinc = lake.table("zinc")
        zinc.flow().append({0: (0, 10)})
        gold = view(lake, "gold", rows(range(3)), zinc=(zinc, 2))
        view(lake, "brass", rows(range(3)), gold=(gold, 1))
        assert [one.dataset.name for one in verify().datasets] == ["zinc", "gold", "brass"]

    def test_an_unknown_dataset_is_an_error_with_the_name_that_was_meant(
        self, lake: Lake, verify: Verify
    ) -> None:
        lake.table("bronze").flow()
        with pytest.raises(TableUnknownError) as raised:
            verify(datasets=[TableName("default", "bronz")])
        assert raised.value.remedies == ("did you mean `bronze`?",)

    def test_a_storage_without_datasets_is_an_error(self, lake: Lake, verify: Verify) -> None:
        with pytest.raises(NothingToVerifyError):
            verify()

    def test_plain_delta_tables_beside_ours_are_left_alone(self, lake: Lake, verify: Verify) -> None:
        lake.table().flow().append({0: (0, 10)})
        plain = lake.table("plain")
        path = plain.log / f"{0:020d}.json"
        path.write_text(path.read_text().replace("headrace.", "else."))
        assert len(verify().datasets) == 1


class TestRunningFlows:
    """What a flow commits while `verify` reads is neither judged nor taken for a fault."""

    @pytest.mark.parametrize("at", ["file"], indirect=True)  # the flow writes to the disk
    @pytest.mark.parametrize("moment", ["before the log", "after the log"])
    def test_are_judged_up_to_a_version(
        self, lake: Lake, verify: Verify, broker: Broker, monkeypatch: pytest.MonkeyPatch, moment: str
    ) -> None:
        table = lake.table()
        flow = table.flow()
        flow.append({0: (0, 10)})
        flow.write_spark_log(0, {"sales": {"0": 10}})
        table.fold("bronze", 0, table.version, flow.said)
        broker.holds({0: range(30)})
        load = evidence.load_table_log

        def commit() -> None:
            flow.append({0: (10, 20)})
            flow.write_spark_log(1, {"sales": {"0": 20}})
            loss = {"source": 0, "topic": "sales", "partition": 0, "from": 20, "until": 22}
            flow.open("data-loss", at={"sales": {"0": 22}}, losses=[loss])
            table.fold("bronze", 0, table.version, flow.said)

        def load_meanwhile(*arguments: Any, **settings: Any) -> Any:
            if moment == "before the log":
                commit()
            log = load(*arguments, **settings)
            if moment == "after the log":
                commit()
            return log

        monkeypatch.setattr(evidence, "load_table_log", load_meanwhile)
        proof = verify()
        assert [finding.text for finding in proof.findings] == []
        assert proof.datasets[0].version == (4 if moment == "before the log" else 2)


class TestSince:
    def test_a_moment_is_the_first_version_from_then_on(self, lake: Lake, verify: Verify) -> None:
        flow = lake.table().flow()
        flow.append({0: (5, 10)}, accepted=6, timestamp_ms=1_000_000)
        flow.append({0: (10, 20)}, timestamp_ms=4_102_444_800_000)
        assert not verify().proven
        proof = verify(since=datetime(2090, 1, 1, tzinfo=UTC))
        assert proof.proven
        assert proof.datasets[0].notes == ("judged from version 3 on",)
        assert proof.datasets[0].flows[0].grades[0].figures["commits"] == 1

    def test_rows_from_before_are_taken_as_they_are(self, lake: Lake, verify: Verify) -> None:
        flow = lake.table().flow()
        flow.append({0: (0, 10)})
        version = flow.append({0: (10, 20)})
        text = verify.dataset(since=version).table.text
        assert text == "20 rows in 2 files = 10 from before version 3 + 10 accepted"

    def test_a_fault_after_it_is_found(self, lake: Lake, verify: Verify) -> None:
        flow = lake.table().flow()
        flow.append({0: (0, 10)})
        version = flow.append({0: (10, 20)})
        flow.append({0: (25, 30)})
        assert [finding.code for finding in verify(since=version).findings] == ["RANGE_MISSING"]

    def test_nothing_since_is_proven(self, lake: Lake, verify: Verify) -> None:
        flow = lake.table().flow()
        version = flow.append({0: (0, 10)}, accepted=11)
        assert verify(since=version + 1).exit_code == 0

    def test_batches_from_before_are_not_missed_in_the_table(self, lake: Lake, verify: Verify) -> None:
        flow = lake.table().flow()
        version = flow.append({0: (0, 10)})
        flow.write_spark_log(0, {"sales": {"0": 10}})
        assert verify(since=version + 1).proven
        flow.write_spark_log(1, {"sales": {"0": 20}})
        assert [finding.code for finding in verify(since=version + 1).findings] == ["TABLE_BEHIND_CHECKPOINT"]

    def test_a_log_that_begins_later_is_judged_from_there(self, lake: Lake, verify: Verify) -> None:
        table = lake.table()
        flow = table.flow()
        for number in range(6):
            flow.append({0: (number * 10, number * 10 + 10)})
        table.forget_log(4)
        assert verify(since=3).proven
        assert verify(since=6).proven


class TestConclusion:
    """The last line says what was judged."""

    def test_records(self, lake: Lake, verify: Verify, broker: Broker) -> None:
        flow = lake.table().flow()
        flow.append({0: (0, 10)})
        broker.holds({0: range(10)})
        assert last_lines(verify) == ["Proven (records)."]
        view(lake, "gold", rows(range(3)), bronze=(flow.table, 2))
        assert last_lines(verify) == ["Proven (records)."]

    def test_a_broker_that_is_down(self, lake: Lake, verify: Verify) -> None:
        lake.table().flow().append({0: (0, 10)})
        line = "Ranges and counts hold; records were not judged: no Kafka broker answers at nowhere."
        assert last_lines(verify) == [line]
        assert last_lines(verify, require="records") == [
            line,
            "Required, but not judged: records",
            "bronze: records: no Kafka broker answers at nowhere",
        ]

    def test_records_that_were_judged_in_part(self, lake: Lake, verify: Verify, broker: Broker) -> None:
        lake.table().flow().append({0: (0, 100)})
        lake.table("none").flow().append({0: (0, 5)}, topic="gone")
        broker.holds({0: range(40, 100)}, low={0: 40})
        assert last_lines(verify) == [
            "Ranges and counts hold; records were judged in part: the broker no longer holds records of "
            "sales/0 (before offset 40) (and 1 other reason)."
        ]

    def test_flows_whose_records_cannot_be_judged_at_all(
        self, lake: Lake, verify: Verify, broker: Broker
    ) -> None:
        lake.table("plain", coordinates=False).flow().append({0: (0, 10)})
        lake.table().flow().append({0: (0, 10)})
        broker.holds({0: range(10)})
        assert last_lines(verify) == ["Proven."]

    def test_keys_that_no_sample_has_compared(self, lake: Lake, verify: Verify, broker: Broker) -> None:
        keyed = {"headrace.keys": '["id"]'}
        lake.table("customers", coordinates=False, properties=keyed).flow().append({0: (0, 10)})
        not_compared = "Keys were not compared with their records (--sample N): default.customers."
        assert last_lines(verify) == [f"Proven. {not_compared}"]
        assert not_compared not in last_lines(verify, sample=5)[0]

    def test_counts_that_were_judged_in_part(self, lake: Lake, verify: Verify, broker: Broker) -> None:
        table = lake.table()
        flow = table.flow()
        flow.append({0: (0, 10)})
        (add,) = table.active()
        table.commit([table.remove(add), table.write(rows(range(8)))], operation="DELETE")
        table.commit([table.remove(table.active()[0]), {"add": add}], operation="RESTORE")
        broker.holds({0: range(10)})
        assert last_lines(verify) == ["What was judged holds; ~ and - mark what was not."]

    def test_a_table_that_is_not_created_yet(self, lake: Lake, verify: Verify, broker: Broker) -> None:
        lake.table().flow().append({0: (0, 10)})
        broker.holds({0: range(10)})
        (lake.storage.table(TableName("default", "silver")) / "_delta_log").mkdir(parents=True)
        assert last_lines(verify) == ["Proven (records). Not created yet: default.silver."]

    def test_a_finding(self, lake: Lake, verify: Verify, broker: Broker) -> None:
        lake.table().flow().append({0: (0, 10)}, accepted=9)
        assert last_lines(verify) == ["Not proven: 1 finding."]


def last_lines(verify: Verify, **settings: Any) -> list[str]:
    """What follows the empty line."""
    lines = proof_lines(verify(**settings))
    return lines[lines.index("") + 1 :]


class TestVerdict:
    def test_a_flow_without_a_batch_is_proven(self, lake: Lake, verify: Verify) -> None:
        lake.table().flow()
        proof = verify(require="ranges")
        assert proof.exit_code == 0
        assert proof.datasets[0].flows[0].grades[0].text == "no batch yet"

    def test_a_contradiction_outweighs_a_grade_that_cannot_be_judged(
        self, lake: Lake, verify: Verify
    ) -> None:
        lake.table().flow().append({0: (0, 10)}, accepted=9)
        assert verify(require="records").exit_code == 1

    def test_a_damaged_log_is_found_and_the_others_are_judged(self, lake: Lake, verify: Verify) -> None:
        lake.table("good").flow().append({0: (0, 10)})
        bad = lake.table("bad")
        bad.flow()
        (bad.log / f"{1:020d}.json").write_text("{ not json")
        proof = verify()
        assert proof.exit_code == 1
        assert [finding.code for finding in proof.findings] == ["LOG_DAMAGED"]

    def test_a_hole_in_the_log_is_found(self, lake: Lake, verify: Verify) -> None:
        table = lake.table()
        flow = table.flow()
        flow.append({0: (0, 10)})
        flow.append({0: (10, 20)})
        (table.log / f"{2:020d}.json").unlink()
        assert [finding.code for finding in verify().findings] == ["LOG_DAMAGED"]

    def test_the_report_is_json(self, lake: Lake, verify: Verify, broker: Broker) -> None:
        lake.table().flow().append({0: (0, 10)}, rows([*range(9), 3]))
        broker.holds({0: range(10)})
        data = json.loads(json.dumps(verify().to_json()))
        check_data("verify", data)
        assert data["proven"] is False
        assert data["exit_code"] == 1
        records = data["datasets"][0]["flows"][0]["grades"]["records"]
        assert records["findings"][0] == {
            "code": "RECORDS_MISSING",
            "text": "sales/0: offset 9 is on the broker and not in the table",
            "topic": "sales",
            "partition": 0,
            "ranges": [[9, 10]],
        }


def test_verify_loads_no_spark() -> None:
    code = "import sys, headrace.verify.proof; assert not {'pyspark', 'py4j'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_verify_exports_loads_nothing_heavy() -> None:
    heavy = "{'pyspark', 'numpy', 'pyarrow', 'deltalake', 'confluent_kafka'}"
    code = f"import sys, headrace.verify; found = {heavy} & set(sys.modules); assert not found, found"
    subprocess.run([sys.executable, "-c", code], check=True)
