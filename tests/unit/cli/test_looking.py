"""`headrace verify`, `status` and `read`: what they print, and what they end with."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from lake import HandFlow, Lake, rows

Call = Callable[..., Any]

SPEC = """\
name: shop
storage: ./lake
libraries:
  - glob: {include: transformations/**}
kafka:
  bootstrap.servers: 127.0.0.1:9
"""


@pytest.fixture
def flow(tmp_path: Path) -> HandFlow:
    (tmp_path / "headrace.yml").write_text(SPEC)
    return Lake(tmp_path / "lake").table().flow()


class TestVerify:
    def test_proven(self, flow: HandFlow, headrace: Call) -> None:
        flow.append({0: (0, 10)})
        called = headrace("verify")
        assert called.exit_code == 0
        assert called.out.splitlines()[:3] == [
            "Proof",
            " bronze  ranges   1 partition, 10 offsets, 1 commit, no gap, no overlap  ✓",
            "         counts   10 in = 10 accepted + 0 quarantined + 0 dropped        ✓",
        ]
        last = called.out.splitlines()[-1]
        assert last.startswith(
            "Ranges and counts hold; records were not judged: the Kafka broker at 127.0.0.1:9"
        )

    def test_not_proven_names_what_is_wrong(self, flow: HandFlow, headrace: Call) -> None:
        flow.append({0: (0, 10)})
        flow.append({0: (12, 20)})
        called = headrace("verify")
        assert called.exit_code == 1
        assert "✗ sales/0: offsets 10 to 11 in no batch: batch 1 starts at 12" in called.out
        assert called.out.splitlines()[-1] == "Not proven: 1 finding."

    def test_a_required_grade_that_cannot_be_judged_says_why(self, flow: HandFlow, headrace: Call) -> None:
        flow.append({0: (0, 10)})
        called = headrace("verify", "--require", "records")
        assert called.exit_code == 3
        assert "the Kafka broker at 127.0.0.1:9 does not answer" in called.out.splitlines()[-1]

    def test_a_table_that_vanished_is_not_proven(self, flow: HandFlow, headrace: Call) -> None:
        flow.append({0: (0, 10)})
        Lake(flow.table.storage.root).table("other").flow().append({0: (0, 10)})
        shutil.rmtree(flow.table.path)
        called = headrace("verify")
        assert called.exit_code == 1
        assert "✗ the table bronze is gone: tables/default/bronze has no Delta log" in called.out
        assert "read it again: headrace full-refresh bronze" in called.out
        assert called.out.splitlines()[-1] == "Not proven: 1 finding."

    @pytest.mark.parametrize(
        ("sample", "text"),
        [
            ("0.5", "a share of the rows needs --recompute"),
            ("1.5", "1.5 is neither a number of rows (1000) nor a share of them (0.01)"),
            ("0", "0 is neither a number of rows"),
            ("some", "some is neither a number of rows"),
        ],
    )
    def test_a_sample_that_cannot_be_taken_is_refused(
        self, flow: HandFlow, headrace: Call, sample: str, text: str
    ) -> None:
        called = headrace("verify", "--sample", sample)
        assert (called.exit_code, text in called.err) == (2, True), called.err

    def test_json(self, flow: HandFlow, headrace: Call) -> None:
        flow.append({0: (0, 10)}, rows([*range(10), 3]))
        called = headrace("verify", "bronze", "--json")
        assert called.exit_code == 1
        assert called.data["proven"] is False
        findings = called.data["datasets"][0]["flows"][0]["grades"]["records"]["findings"]
        assert [finding["ranges"] for finding in findings] == [[[3, 4]]]

    def test_since_a_version_a_moment_or_an_age(self, flow: HandFlow, headrace: Call) -> None:
        flow.append({0: (0, 10)}, accepted=11)
        flow.append({0: (10, 20)})
        assert headrace("verify").exit_code == 1
        assert headrace("verify", "bronze", "--since", "3").exit_code == 0
        assert headrace("verify", "--since", "2h").exit_code == 1
        assert headrace("verify", "--since", "2090-01-01").exit_code == 0

    @pytest.mark.parametrize("since", ["3", "yesterday"])
    def test_since_what_is_no_point_in_time(self, flow: HandFlow, headrace: Call, since: str) -> None:
        assert headrace("verify", "--since", since).exit_code == 2

    def test_an_unknown_dataset(self, flow: HandFlow, headrace: Call) -> None:
        called = headrace("verify", "bronse")
        assert called.exit_code == 2
        assert "did you mean `bronze`?" in called.err

    def test_nothing_to_verify(self, tmp_path: Path, headrace: Call) -> None:
        (tmp_path / "headrace.yml").write_text(SPEC)
        called = headrace("verify")
        assert called.exit_code == 2
        assert "NOTHING_TO_VERIFY" in called.err


class TestStatus:
    def test_a_line_for_each_flow(self, flow: HandFlow, headrace: Call) -> None:
        flow.append({0: (0, 10)})
        called = headrace("status")
        assert called.exit_code == 0
        (line,) = [line for line in called.out.splitlines() if line.startswith("bronze")]
        assert line.split()[:6] == ["bronze", "unknown", "10", "-", "unknown", "0"]
        assert "lag unknown: no Kafka broker answers at 127.0.0.1:9" in called.out

    def test_json(self, flow: HandFlow, headrace: Call) -> None:
        flow.append({0: (0, 10)})
        called = headrace("status", "--json")
        assert called.data["datasets"][0]["rows"] == 10

    def test_before_the_first_run(self, tmp_path: Path, headrace: Call) -> None:
        (tmp_path / "headrace.yml").write_text(SPEC)
        called = headrace("status")
        assert called.exit_code == 0
        assert "has no table" in called.out

    def test_a_check_names_each_trouble_and_ends_with_a_code(self, flow: HandFlow, headrace: Call) -> None:
        flow.append({0: (0, 10)})
        called = headrace("status", "--check")
        assert (called.exit_code, called.out) == (0, "No trouble in 1 dataset.\n")
        # The broker does not answer, so nobody knows the lag.
        called = headrace("status", "--check", "--max-lag", "5")
        assert called.exit_code == 3
        assert called.out.startswith("bronze: lag unknown: no Kafka broker answers at 127.0.0.1:9")
        assert headrace("status", "--check", "--max-age", "1h").exit_code == 0
        called = headrace("status", "--check", "--max-age", "0s", "--max-lag", "5", "--json")
        assert called.exit_code == 1
        assert [one["unknown"] for one in called.data["troubles"]] == [False, True]
        assert called.data["troubles"][0]["text"].startswith("has not changed for ")
        write_deltalake(str(flow.table.path.parent / "odd"), pa.table({"id": [1]}))
        (flow.table.path.parent / "odd" / "_delta_log" / f"{0:020}.json").write_text("{")
        called = headrace("status", "--exit-code")
        assert (called.exit_code, "odd: cannot be read" in called.out) == (1, True)

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            (["--watch"], "--watch needs a terminal"),
            (["--watch", "--json"], "--watch is for a terminal"),
            (["--max-lag", "5"], "--max-lag and --max-age are limits of --check"),
            (["--check", "--tables"], "--check cannot be used with"),
            (["--check", "--max-age", "5"], "'5' is not a time with a unit"),
        ],
    )
    def test_options_that_do_not_fit_are_refused(
        self, flow: HandFlow, headrace: Call, options: list[str], text: str
    ) -> None:
        called = headrace("status", *options)
        assert (called.exit_code, text in called.err + called.out) == (2, True), called.err + called.out


class TestRead:
    def test_rows(self, flow: HandFlow, headrace: Call) -> None:
        flow.append({0: (0, 10)})
        called = headrace("read", "bronze", "--where", "id = 4", "--columns", "id,_source.topic")
        assert called.exit_code == 0
        head, row, count = (line.split() for line in called.out.splitlines())
        assert head == ["id", "_source.topic"]
        assert row == ["4", "sales"]
        assert count == ["1", "row", "of", "bronze", "v2"]

    def test_a_limit_says_that_there_is_more(self, flow: HandFlow, headrace: Call) -> None:
        flow.append({0: (0, 10)})
        assert "use --limit to see more" in headrace("read", "bronze", "--limit", "3").out
        assert headrace("read", "bronze", "--limit", "3", "--json").data["cut"] is True

    def test_the_table_as_it_was(self, flow: HandFlow, headrace: Call) -> None:
        flow.append({0: (0, 10)})
        flow.append({0: (10, 20)})
        newest = flow.table.version
        earlier = headrace("read", "bronze", "--version", str(newest - 1), "--json").data
        assert (earlier["version"], len(earlier["rows"])) == (newest - 1, 10)
        assert headrace("read", "bronze", "--timestamp", "0s", "--json").data["version"] == newest
        missing = headrace("read", "bronze", "--version", "99")
        assert missing.exit_code == 2
        assert f"its log has versions 0 to {newest}" in missing.err
        assert headrace("read", "bronze", "--version", "1", "--timestamp", "2h").exit_code == 2
        assert headrace("read", "bronze", "--timestamp", "yesterday").exit_code == 2

    def test_the_sequences_of_changes_by_key_are_shown_if_they_are_asked_for(
        self, tmp_path: Path, headrace: Call
    ) -> None:
        folder = str(tmp_path / "customers")
        values = {"id": [1], "_sequence": [{"value": 7, "position": 3}], "_sequences": [{"city": None}]}
        sequence = pa.struct([("value", pa.int64()), ("position", pa.int64())])
        types = [("id", pa.int64()), ("_sequence", sequence), ("_sequences", pa.struct([("city", sequence)]))]
        write_deltalake(folder, pa.table(values, schema=pa.schema(types)))
        called = headrace("read", folder)
        assert called.out.splitlines()[-1].endswith("v0, without _sequence, _sequences")
        assert called.out.split()[:2] == ["id", "1"]
        asked = headrace("read", folder, "--columns", "id,_sequence.value").out
        assert asked.split()[:4] == ["id", "_sequence.value", "1", "7"]
        assert headrace("read", folder, "--json").data["columns"][1]["name"] == "_sequence"

    def test_a_folder_needs_no_pipeline(
        self, flow: HandFlow, headrace: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        flow.append({0: (0, 10)})
        elsewhere = tmp_path.parent
        monkeypatch.chdir(elsewhere)
        called = headrace("read", str(flow.table.path), "--json")
        assert len(called.data["rows"]) == 10

    def test_what_is_not_there(self, flow: HandFlow, headrace: Call) -> None:
        assert headrace("read", "bronxe").exit_code == 2
        assert headrace("read", "bronze", "--columns", "idd").exit_code == 2
        assert headrace("read", "bronze", "--where", "id >").exit_code == 2


@pytest.mark.parametrize("verb", ["verify", "status", "read bronze"])
def test_no_spark_is_loaded(flow: HandFlow, verb: str) -> None:
    flow.append({0: (0, 10)})
    code = (
        "import sys; from headrace.cli.main import run\n"
        f"assert run({verb.split()!r}) == 0\n"
        "assert not {'pyspark', 'py4j'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
