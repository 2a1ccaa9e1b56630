"""A storage whose checkpoints, tables or leases were lost, restored or damaged."""

import json

from pyspark.sql import SparkSession

from remedies.folders import ChangesFolder, FilesFolder, TopicFolder
from remedies.walk import Walk, line_of, situation

VISITS = "transformations/visits.py"
LATEST = "transformations/latest.py"


def files(walk: Walk) -> FilesFolder:
    assert isinstance(walk.folder, FilesFolder)
    return walk.folder


@situation("CHECKPOINT_LOST")
def a_checkpoint_is_deleted(walk: Walk) -> None:
    folder = files(walk)
    walk.removes(folder.storage.flow_checkpoints(folder.name("visits"), "visits"))
    folder.put()
    shown = walk.fails("headrace run", f"{VISITS}:")
    walk.follows(shown, "headrace reset visits")
    walk.is_healthy()


@situation("CHECKPOINT_BEHIND_TABLE")
def an_old_checkpoint_is_restored(walk: Walk) -> None:
    folder = files(walk)
    backup = walk.keeps(folder.checkpoint("visits"))
    folder.put()
    walk.goes_well("headrace run")
    walk.restores(backup, folder.checkpoint("visits"))
    folder.put()
    shown = walk.fails("headrace run", f"{VISITS}:")
    walk.follows(shown, "headrace reset visits")
    walk.is_healthy()


@situation("CHECKPOINT_FOREIGN")
def a_checkpoint_of_plain_spark(walk: Walk) -> None:
    folder = files(walk)
    walk.removes(folder.checkpoint("visits") / "headrace.json")
    folder.put()
    shown = walk.fails("headrace run", f"{VISITS}:")
    walk.enters(shown, "mv ")
    walk.follows(shown, "headrace reset visits")
    walk.is_healthy()


@situation("CHECKPOINT_CORRUPT")
def a_file_of_a_checkpoint_is_damaged(walk: Walk) -> None:
    folder = files(walk)
    for remedy in ("headrace checkpoint repair visits", "headrace reset visits"):
        walk.breaks(folder.checkpoint("visits") / "offsets" / str(folder.next_batch("visits") - 1))
        folder.put()
        walk.follows(walk.fails("headrace run", f"{VISITS}:"), remedy)
        walk.is_healthy()


@situation("TABLE_BEHIND_CHECKPOINT")
def an_old_table_is_restored(walk: Walk) -> None:
    folder = files(walk)
    backup = walk.keeps(folder.table("visits"))
    folder.put()
    walk.goes_well("headrace run")
    walk.restores(backup, folder.table("visits"))
    folder.put()
    shown = walk.fails("headrace run", f"{VISITS}:")
    walk.follows(shown, "headrace reset visits")
    walk.is_healthy()


@situation("TABLE_LOST")
def a_table_is_deleted(walk: Walk) -> None:
    folder = files(walk)
    walk.removes(folder.table("visits"))
    shown = walk.fails("headrace run", f"{VISITS}:")
    assert "pages  skipped: it reads visits, which could not be opened (TABLE_LOST)" in shown.text, shown.text
    assert shown.text.count("error[") == 1, shown.text
    assert "./lake/tables/default/visits is missing; its checkpoint ./lake/" in shown.text, shown.text
    rebuilt = walk.follows(shown, "headrace full-refresh visits")
    assert "the table is missing" in rebuilt.text, rebuilt.text
    walk.is_healthy()
    backup = walk.keeps(folder.table("visits"))
    walk.removes(folder.table("visits"))
    shown = walk.fails("headrace run", f"{VISITS}:")
    walk.does("restored from the backup: lake/tables/default/visits")
    backup.replace(folder.table("visits"))
    walk.follows(shown, "headrace run")
    walk.is_healthy()


@situation("LOG_UNREADABLE")
def a_commit_of_a_table_is_torn(walk: Walk) -> None:
    folder = files(walk)
    newest = max((folder.table("visits") / "_delta_log").glob("*.json"))
    backup = walk.keeps(newest)
    walk.breaks(newest, newest.read_bytes()[:40])
    folder.put()
    shown = walk.fails("headrace run", newest.name)
    assert "restore the file" in shown.text, shown.text
    walk.restores(backup, newest)
    walk.is_healthy()
    newest = max((folder.table("visits") / "_delta_log").glob("*.json"))
    walk.breaks(newest, newest.read_bytes()[:40])
    folder.put()
    shown = walk.fails("headrace run", newest.name)
    walk.enters(shown, "mv ")
    walk.follows(shown, "headrace full-refresh visits")
    walk.is_healthy()


@situation("TABLE_LOST", "topic")
def a_table_with_a_reader_is_deleted(walk: Walk) -> None:
    folder = walk.folder
    assert isinstance(folder, TopicFolder)
    walk.removes(folder.table("orders"))
    folder.produce()
    shown = walk.fails("headrace run", "transformations/orders.py:")
    walk.follows(shown, "headrace full-refresh orders --accept-loss ")
    walk.is_healthy()


@situation("TABLE_FOLDER_TAKEN", spoils=True)
def a_folder_with_other_files(walk: Walk) -> None:
    folder = walk.folder
    walk.edit(
        {"transformations/extra.sql": "CREATE STREAMING TABLE extra AS SELECT id FROM STREAM visits;\n"}
    )
    taken = folder.table("extra")
    taken.mkdir()
    (taken / "notes.txt").write_text("not a table\n")
    shown = walk.fails("headrace run", "transformations/extra.sql:1")
    walk.enters(shown, "mv ")
    walk.follows(shown, "headrace run")
    walk.is_healthy()


def renames_flow(walk: Walk) -> None:
    """The flow `visits` gets the name `reads`."""
    flow = '@hr.append_flow(target="visits", name="reads")'
    walk.replace(VISITS, "@hr.table", f'hr.create_streaming_table("visits")\n\n\n{flow}')


@situation("FLOW_RENAMED", spoils=True)
def a_flow_gets_another_name(walk: Walk) -> None:
    renames_flow(walk)
    shown = walk.fails("headrace run", f"{VISITS}:")
    walk.follows(shown, "headrace run --rename-flow visits=reads")
    files(walk).put()
    walk.is_healthy()


@situation("RENAME_IMPOSSIBLE", spoils=True)
def a_misspelt_name_of_a_renamed_flow(walk: Walk) -> None:
    renames_flow(walk)
    shown = walk.fails("headrace run --rename-flow vists=reads", f"{VISITS}:")
    walk.follows(shown, "headrace run --rename-flow visits=reads")
    walk.is_healthy()


@situation("SOURCES_CHANGED", spoils=True)
def a_flow_reads_another_folder(walk: Walk) -> None:
    folder = files(walk)
    (folder.root / "other").mkdir()
    walk.replace(VISITS, '"landing"', '"other"')
    shown = walk.fails("headrace run", line_of(folder, VISITS, '"other"'))
    walk.replace(VISITS, '"other"', '"landing"')
    walk.follows(shown, "headrace run")
    walk.is_healthy()
    walk.replace(VISITS, '"landing"', '"other"')
    reset = walk.follows(shown, "headrace reset visits")
    assert reset.text.count("gets a new checkpoint") == 1, reset.text
    walk.is_healthy()
    walk.replace(VISITS, '"other"', '"landing"')
    shown = walk.fails("headrace run", f"{VISITS}:")
    walk.replace(VISITS, '"landing"', '"other"')
    walk.follows(shown, "headrace full-refresh visits --accept-loss visits")
    folder.ids.clear()
    walk.is_healthy()


@situation("LEASE_UNREADABLE")
def a_lease_is_damaged(walk: Walk) -> None:
    folder = files(walk)
    lease = folder.storage.lease(folder.name("visits"), "visits")
    lease.parent.mkdir(exist_ok=True)
    walk.breaks(lease)
    folder.put()
    shown = walk.fails("headrace run", "visits")
    walk.enters(shown, "rm ")
    walk.follows(shown, "headrace run")
    walk.is_healthy()


@situation("STORAGE_UNWRITABLE")
def a_file_where_the_storage_should_be(walk: Walk) -> None:
    walk.edit({"headrace.yml": walk.folder.spec().replace("./lake", "./taken"), "taken": "a file\n"})
    shown = walk.fails("headrace run", "./taken is a file, not a folder")
    assert "headrace.yml:2:10" in shown.text, shown.text
    walk.enters(shown, "mv ./taken ./taken.moved")
    walk.edit({"headrace.yml": "{spec}"})
    walk.is_healthy()


@situation("STORAGE_NEWER")
def a_checkpoint_of_a_newer_version(walk: Walk) -> None:
    identity = walk.folder.checkpoint("visits") / "headrace.json"
    was = identity.read_text()
    identity.write_text(json.dumps({**json.loads(was), "headrace": 99}))
    walk.does("a newer version of Headrace has written the checkpoint")
    walk.fails("headrace run", VISITS)
    walk.does("the newer version is installed")
    identity.write_text(was)
    walk.is_healthy()


@situation("KEYS_CHANGED", "changes", spoils=True)
def other_keys_are_declared(walk: Walk) -> None:
    walk.replace(LATEST, '["id"]', '["id", "name"]')
    shown = walk.fails("headrace run", f"{LATEST}:")
    walk.replace(LATEST, '["id", "name"]', '["id"]')
    walk.is_healthy()
    walk.replace(LATEST, '["id"]', '["id", "name"]')
    assert isinstance(walk.folder, ChangesFolder)
    walk.folder.by_name = True
    walk.follows(shown, "headrace full-refresh latest")
    walk.is_healthy()


@situation("KEY_TWICE", "changes")
def another_writer_adds_a_key_again(walk: Walk) -> None:
    folder = walk.folder
    assert isinstance(folder, ChangesFolder)
    walk.does("another program writes a row of the table once more")
    latest = f"delta.`{folder.table('latest')}`"
    SparkSession.active().sql(f"INSERT INTO {latest} SELECT * FROM {latest} WHERE id = 1")
    folder.put(1, "z")
    shown = walk.fails("headrace run", "id = 1 has 2 rows")
    assert "in version 3: WRITE by Apache-Spark/" in shown.text, shown.text
    walk.follows(shown, "headrace full-refresh latest")
    walk.is_healthy()
    walk.does("another program writes a row of the table once more")
    SparkSession.active().sql(f"INSERT INTO {latest} SELECT * FROM {latest} WHERE id = 1")
    folder.put(1, "y")
    shown = walk.fails("headrace run", "id = 1 has 2 rows")
    walk.edit({"headrace.yml": f"{{spec}}{shown.remedies[1].rpartition(':   ')[2]}\n"})
    walk.follows(shown, "headrace run")
    walk.is_healthy()
