"""Resets to chosen offsets: what is read again or never is declared, and `verify` counts it."""

from __future__ import annotations

import json

import deltalake
import pytest

from headrace.errors import HeadraceError
from headrace.model.remedies import ChosenStart
from headrace.project.pipeline import Pipeline
from headrace.verify.report import GradeReport
from proof.shop import BRONZE, Shop

pytestmark = pytest.mark.usefixtures("spark")


def reset(shop: Shop, text: str, *, allow: bool = False, accept: bool = False) -> None:
    chosen = ChosenStart.parse(
        text.replace("{topic}", shop.topic), allow_duplicates=allow, accept_loss=accept
    )
    with Pipeline.load(shop.root) as pipeline:
        pipeline.reset(["bronze"], chosen)


def refused(shop: Shop, text: str, *, allow: bool = False, accept: bool = False) -> HeadraceError:
    before = shop.versions()
    with pytest.raises(HeadraceError) as raised:
        reset(shop, text, allow=allow, accept=accept)
    assert shop.versions() == before
    return raised.value


def offsets(shop: Shop) -> list[int]:
    """How often the table has each offset of partition 0, in order of the offsets."""
    rows = deltalake.DeltaTable(shop.table("bronze")).to_pyarrow_table(columns=["partition", "offset"])
    found = [row["offset"] for row in rows.to_pylist() if row["partition"] == 0]
    return [found.count(offset) for offset in range(max(found) + 1)]


def grades(shop: Shop) -> dict[str, GradeReport]:
    proof = shop.verify()
    return {grade.grade: grade for grade in proof.datasets[0].flows[0].grades}


def test_a_reset_to_chosen_offsets_declares_what_it_repeats_and_what_it_leaves_out(shop: Shop) -> None:
    shop.write(BRONZE)
    shop.produce(30)
    shop.run_well()
    assert offsets(shop) == [1] * 10

    # Back.
    error = refused(shop, "{topic}:0=4")
    assert error.code == "RANGES_READ_AGAIN"
    assert error.facts[0] == f"topic {shop.topic}, partition 0: offsets 4 to 9"
    assert error.remedies[0].endswith(f"headrace reset bronze --from {shop.topic}:0=4 --allow-duplicates")
    assert refused(shop, "{topic}:0=11").code == "START_INVALID"
    assert refused(shop, "{topic}:7=0").code == "START_INVALID"
    reset(shop, "{topic}:0=4", allow=True)
    shop.fail_at("bronze/after-commit", 1)
    shop.run_well()
    assert offsets(shop) == [1] * 4 + [2] * 6
    found = grades(shop)
    assert found["ranges"].figures["repeated"] == 6
    assert "6 offsets read again, as declared" in found["ranges"].text
    assert "30 read from Kafka + 6 read again, as declared = 36 in the table" in found["records"].text

    # Forward, over offsets that no checkpoint has read.
    shop.produce(30)
    assert refused(shop, "{topic}:0=15").code == "RANGES_SKIPPED"
    reset(shop, "{topic}:0=15", accept=True)
    shop.run_well()
    assert offsets(shop) == [1] * 4 + [2] * 6 + [0] * 5 + [1] * 5
    assert grades(shop)["ranges"].figures["lost"] == 5

    # Back to the lost offsets: they are not lost any more.
    assert refused(shop, "{topic}:0=10").code == "RANGES_READ_AGAIN"
    reset(shop, "{topic}:0=10", allow=True)
    shop.run_well()
    assert offsets(shop) == [1] * 4 + [2] * 6 + [1] * 5 + [2] * 5
    figures = grades(shop)["ranges"].figures
    assert (figures["lost"], figures["repeated"]) == (0, 11)

    # Back, and forward before anything is read again.
    reset(shop, "earliest", allow=True)
    reset(shop, "latest")
    shop.produce(3)
    shop.run_well()
    assert offsets(shop) == [1] * 4 + [2] * 6 + [1] * 5 + [2] * 5 + [1]
    figures = grades(shop)["ranges"].figures
    assert (figures["lost"], figures["repeated"]) == (0, 11)

    # Rows that nothing declares are found.
    commit = max((shop.table("bronze") / "_delta_log").glob("*.json"))
    reset(shop, "{topic}:0=15", allow=True)
    shop.run_well()
    shop.verify()
    for path in (shop.table("bronze") / "_delta_log").glob("*.json"):
        if path.name > commit.name and '\\"repeats\\"' in (text := path.read_text()):
            path.write_text(text.replace('\\"repeats\\"', '\\"ignored\\"'))
    with Pipeline.load(shop.root) as pipeline:
        codes = {finding.code for finding in pipeline.verify().findings}
    assert {"RANGE_TWICE", "RECORDS_TWICE"} <= codes, json.dumps(sorted(codes))
