"""Files and rows that a run refuses, and refreshes that would lose rows."""

import gzip
import re

import deltalake

from remedies.folders import SnapshotsFolder
from remedies.storage import VISITS, files
from remedies.walk import Shown, Walk, line_of, situation

AS_TEXT = """\
    records = hr.read_files("landing", format="text")
    parsed = records.selectExpr("from_json(value, 'id LONG, page STRING') AS one", "_source")
    return parsed.select("one.*", "_source")
"""


@situation("RECORD_UNPARSEABLE")
def a_record_that_does_not_fit(walk: Walk) -> None:
    folder = files(walk)
    was = folder.read(VISITS) or ""
    folder.put_text("bad1.json", '{"id": "x"}\n')
    walk.does('landing/bad1.json has the record {"id": "x"}')
    walk.replace(VISITS, 'STRING")', 'STRING", bad_records="stop")')
    shown = walk.fails("headrace run", f"{VISITS}:")
    assert 'bad_records="quarantine"' in shown.text, shown.text
    assert 'format="text" and no schema' in shown.text, shown.text
    read = folder.read(VISITS) or ""
    walk.edit({VISITS: read.partition("    return ")[0] + AS_TEXT})
    walk.goes_well("headrace plan")
    walk.edit({VISITS: read})
    walk.replace(VISITS, '"stop"', '"quarantine"')
    walk.is_healthy()
    walk.edit({VISITS: was})


@situation("FILE_UNREADABLE")
def a_file_that_is_not_compressed(walk: Walk) -> None:
    folder = files(walk)
    bad = folder.put_text("bad2.json.gz", "not compressed")
    walk.does("landing/bad2.json.gz is not compressed")
    shown = walk.fails("headrace run", f"{VISITS}:")
    assert "replace it by an empty file of the same name" in shown.text, shown.text
    walk.does("the file is replaced by an empty one")
    bad.write_bytes(gzip.compress(b""))
    walk.is_healthy()


def vanishes(walk: Walk) -> Shown:
    """A file is removed after a batch with it was planned."""
    folder = files(walk)
    path = folder.put()
    walk.stops_at(f"visits/before-commit:{folder.next_batch('visits')}")
    walk.removes(path)
    folder.ids.pop()
    return walk.fails("headrace run", f"{VISITS}:")


@situation("FILE_VANISHED")
def a_file_of_a_planned_batch_is_removed(walk: Walk) -> None:
    walk.follows(vanishes(walk), "headrace reset visits")
    walk.is_healthy()
    shown = vanishes(walk)
    assert "on_data_loss: record" in shown.text, shown.text
    walk.edit({"headrace.yml": "{spec}on_data_loss: record\n"})
    walk.is_healthy()
    walk.edit({"headrace.yml": "{spec}"})


@situation("REFRESH_LOSES_DATA", spoils=True)
def a_file_that_was_read_is_gone(walk: Walk) -> None:
    folder = files(walk)
    path = folder.put()
    walk.goes_well("headrace run")
    backup = walk.keeps(path)
    walk.removes(path)
    shown = walk.fails("headrace full-refresh visits", path.name)
    walk.restores(backup, path)
    walk.follows(shown)
    walk.is_healthy()
    walk.removes(path)
    folder.ids.pop()
    shown = walk.fails("headrace full-refresh visits", path.name)
    walk.follows(shown, "headrace full-refresh visits --accept-loss")
    walk.is_healthy()


@situation("FULL_REFRESH_NOT_ALLOWED")
def a_table_that_no_refresh_may_empty(walk: Walk) -> None:
    was = walk.folder.read(VISITS) or ""
    walk.replace(VISITS, "@hr.table", '@hr.table(table_properties={"pipelines.reset.allowed": "false"})')
    walk.goes_well("headrace run")
    shown = walk.fails("headrace full-refresh visits", f"{VISITS}:")
    walk.edit({VISITS: was})
    walk.follows(shown, "headrace full-refresh visits")
    walk.is_healthy()


@situation("REFRESH_UNFINISHED", spoils=True)
def a_full_refresh_of_two_flows_is_interrupted(walk: Walk) -> None:
    walk.edit({"more/.keep": ""})
    read = 'return hr.read_files("{}", format="json", schema="id LONG, page STRING")'
    flow = '@hr.append_flow(target="visits")\ndef {}():\n    {}\n\n\n'
    flows = (flow.format("visits", read.format("landing")), flow.format("more", read.format("more")))
    walk.edit({VISITS: f'import headrace as hr\n\nhr.create_streaming_table("visits")\n\n\n{"".join(flows)}'})
    walk.goes_well("headrace run")
    # At the first of the two flows.
    walk.stops_at("rows-fenced:0", "headrace full-refresh visits")
    shown = walk.fails("headrace run", f"{VISITS}:")
    assert shown.text.count("error[") == 1, shown.text
    walk.follows(shown, "headrace full-refresh visits")
    walk.is_healthy()


@situation("EXPECTATION_FAILED", spoils=True)
def a_row_that_stops_the_flow(walk: Walk) -> None:
    folder = files(walk)
    walk.replace(VISITS, "@hr.table", '@hr.expect_or_fail("known page", "page IS NOT NULL")\n@hr.table')
    folder.put_text("bad3.json", '{"id": -1}\n')
    walk.does('landing/bad3.json has the record {"id": -1}')
    shown = walk.fails("headrace run", f"{VISITS}:")
    assert "expect_or_drop" in shown.text, shown.text
    walk.replace(VISITS, "expect_or_fail", "expect_or_drop")
    walk.is_healthy()


@situation("MAX_REJECTED_EXCEEDED", spoils=True)
def too_many_rows_are_rejected(walk: Walk) -> None:
    folder = files(walk)
    walk.replace(VISITS, "@hr.table", '@hr.expect_or_drop("known page", "page IS NOT NULL")\n@hr.table')
    walk.edit({"headrace.yml": "{spec}max_rejected: 10%\n"})
    folder.put_text("bad4.json", '{"id": -1}\n')
    walk.does('landing/bad4.json has the record {"id": -1}')
    shown = walk.fails("headrace run", line_of(folder, VISITS, "expect_or_drop"))
    assert "bad4.json" in shown.text and '"id": -1' in shown.text, shown.text
    enough = re.search(r"max_rejected: \d+%", shown.remedies[-1])
    assert enough is not None, shown.text
    walk.edit({"headrace.yml": f"{{spec}}{enough[0]}\n"})
    walk.is_healthy()


@situation("DATASET_CHECK_FAILED", spoils=True)
def a_table_with_an_id_twice(walk: Walk) -> None:
    folder = files(walk)
    walk.replace(VISITS, "@hr.table", '@hr.expect_unique(["id"], fail=True)\n@hr.table')
    twice = folder.put_text("twice.json", '{"id": 0, "page": "p0"}\n')
    walk.does("landing/twice.json has the record 0 again")
    shown = walk.fails("headrace run", f"{VISITS}:")
    walk.does(folder.correct(twice))
    walk.follows(shown, "headrace full-refresh visits")
    walk.is_healthy()
    assert "remove `fail` from the check" in shown.text, shown.text
    folder.put_text("again.json", '{"id": 0, "page": "p0"}\n')
    walk.does("landing/again.json has the record 0 again")
    shown = walk.fails("headrace run", f"{VISITS}:")
    walk.replace(VISITS, ", fail=True", "")
    walk.follows(shown, "headrace run")


@situation("CONSTRAINT_VIOLATED", spoils=True)
def a_row_that_delta_refuses(walk: Walk) -> None:
    folder = files(walk)
    walk.does("another program adds a constraint to the table")
    deltalake.DeltaTable(str(folder.table("visits"))).alter.add_constraint({"known_page": "page IS NOT NULL"})
    bad = folder.put_text("bad5.json", '{"id": -1}\n')
    walk.does('landing/bad5.json has the record {"id": -1}')
    shown = walk.fails("headrace run", f"{VISITS}:")
    assert 'the row: {"id": -1, "page": null' in shown.text and "landing/bad5.json" in shown.text, shown.text
    walk.does(folder.correct(bad))
    walk.follows(shown, "headrace run")
    walk.is_healthy()
    folder.put_text("bad6.json", '{"id": -1}\n')
    walk.does('landing/bad6.json has the record {"id": -1}')
    shown = walk.fails("headrace run", f"{VISITS}:")
    declared = re.search(r"@hr.expect_or_quarantine\(.*\)", shown.remedies[-1])
    assert declared is not None, shown.text
    walk.replace(VISITS, "@hr.table", f"{declared[0]}\n@hr.table")
    walk.is_healthy()


@situation("SNAPSHOT_KEYS_INVALID", "snapshots")
def a_snapshot_with_a_key_twice(walk: Walk) -> None:
    folder = walk.folder
    assert isinstance(folder, SnapshotsFolder)
    walk.edit({"given/2.json": '{"item": "pen", "price": 1}\n{"item": "pen", "price": 3}\n'})
    shown = walk.fails("headrace run", "transformations/prices.py:")
    assert "the snapshot 2 of ./given" in shown.text, shown.text
    folder.give("2.json", {"pen": 3})
    walk.does("given/2.json is corrected")
    walk.follows(shown, "headrace run")
    walk.is_healthy()


@situation("SNAPSHOT_INVALID", "snapshots", spoils=True)
def a_snapshot_without_a_version(walk: Walk) -> None:
    folder = walk.folder
    assert isinstance(folder, SnapshotsFolder)
    walk.edit({"given/newest.json": '{"item": "pen", "price": 1}\n'})
    shown = walk.fails("headrace run", "transformations/prices.py:")
    walk.enters(shown, "mv ")
    folder.prices = {"pen": 1}
    walk.is_healthy()
