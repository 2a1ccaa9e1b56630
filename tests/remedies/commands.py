"""Commands that name what does not exist, or ask for what is refused."""

import os
import time

import deltalake

from remedies.folders import TopicFolder
from remedies.storage import files
from remedies.walk import Walk, situation

SQL = "transformations/extra.sql"
EXTRA = "CREATE MATERIALIZED VIEW extra AS SELECT id FROM visits;\n"


@situation("COMMAND_LINE")
def a_misspelt_command(walk: Walk) -> None:
    shown = walk.fails("headrace statsu")
    assert "headrace status" in shown.text, shown.text
    walk.goes_well("headrace status")


@situation("COMMAND_LINE")
def a_misspelt_option(walk: Walk) -> None:
    shown = walk.fails("headrace run --continous")
    assert "--continuous" in shown.text, shown.text
    walk.follows(shown, "headrace run --help")


@situation("CONFLICTING_PIPELINE_REFRESH_OPTIONS")
def all_datasets_and_one(walk: Walk) -> None:
    shown = walk.fails("headrace run --full-refresh-all --full-refresh visits")
    walk.follows(shown, "headrace run --full-refresh-all")
    walk.is_healthy()


@situation("NOT_CONFIRMED")
def nobody_can_answer(walk: Walk) -> None:
    shown = walk.fails("headrace full-refresh visits", "visits", unattended=True)
    walk.follows(shown, "headrace full-refresh visits --yes")
    walk.is_healthy()


@situation("NOT_CONFIRMED")
def nobody_can_answer_a_reset(walk: Walk) -> None:
    shown = walk.fails("headrace reset visits", "after the files whose rows are committed", unattended=True)
    walk.follows(shown, "headrace reset visits --yes")
    walk.is_healthy()


@situation("DATASET_UNKNOWN")
def a_misspelt_dataset(walk: Walk) -> None:
    shown = walk.fails("headrace run vists")
    walk.goes_well(f"headrace run {shown.suggestions[0]}")
    walk.is_healthy()


@situation("FLOW_UNKNOWN")
def a_misspelt_flow(walk: Walk) -> None:
    shown = walk.fails("headrace reset vists")
    walk.goes_well(f"headrace reset {shown.suggestions[0]}")
    walk.is_healthy()


@situation("FLOW_UNKNOWN")
def a_checkpoint_of_no_flow(walk: Walk) -> None:
    shown = walk.fails("headrace checkpoint show orders")
    walk.follows(shown, "headrace checkpoint show")


@situation("TABLE_UNKNOWN")
def a_misspelt_table(walk: Walk) -> None:
    shown = walk.fails("headrace read vists")
    walk.goes_well(f"headrace read {shown.suggestions[0]}")


@situation("TABLE_UNKNOWN")
def a_table_of_another_pipeline(walk: Walk) -> None:
    shown = walk.fails("headrace verify customers")
    assert "its tables: pages, visits" in shown.text and "--project PATH" in shown.text, shown.text
    walk.goes_well("headrace verify visits")


@situation("NOTHING_TO_VERIFY")
def a_proof_before_the_first_run(walk: Walk) -> None:
    walk.edit({"headrace.yml": walk.folder.spec().replace("./lake", "./lake2")})
    shown = walk.fails("headrace verify", "lake2")
    walk.edit({"headrace.yml": "{spec}"})
    walk.follows(shown, "headrace run")
    walk.is_healthy()


@situation("READ_COLUMN_UNKNOWN")
def a_misspelt_column(walk: Walk) -> None:
    shown = walk.fails("headrace read visits --columns id,pge", "pge")
    walk.goes_well(f"headrace read visits --columns id,{shown.suggestions[0]}")


@situation("READ_COLUMN_UNKNOWN")
def a_misspelt_column_of_a_lineage(walk: Walk) -> None:
    walk.goes_well("headrace plan")
    shown = walk.fails("headrace lineage visits.pge", "pge")
    walk.goes_well(f"headrace lineage visits.{shown.suggestions[0]}")


@situation("LINEAGE_MISSING")
def a_lineage_before_the_first_plan(walk: Walk) -> None:
    walk.edit({"headrace.yml": walk.folder.spec().replace("./lake", "./lake2")})
    shown = walk.fails("headrace lineage", "headrace plan")
    walk.edit({"headrace.yml": "{spec}"})
    walk.follows(shown, "headrace plan")
    walk.goes_well("headrace lineage")
    walk.is_healthy()


@situation("READ_CONDITION_INVALID")
def half_a_condition(walk: Walk) -> None:
    shown = walk.fails("headrace read visits --where 'id >'", "id >")
    assert "expected an expression after `id >`" in shown.text, shown.text
    walk.follows(shown, "headrace read visits --where")


@situation("READ_VERSION_UNKNOWN")
def a_version_that_never_was(walk: Walk) -> None:
    shown = walk.fails("headrace read visits --version 999", "visits")
    walk.follows(shown, "headrace read visits")


@situation("READ_VERSION_GONE")
def the_files_of_a_version_are_deleted(walk: Walk) -> None:
    folder = files(walk)
    table = deltalake.DeltaTable(str(folder.table("visits")))
    before = table.version()
    folder.put()
    walk.goes_well("headrace run")
    walk.does("the table is rebuilt, and old files are deleted")
    walk.goes_well("headrace full-refresh visits")
    table = deltalake.DeltaTable(str(folder.table("visits")))
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    shown = walk.fails(f"headrace read visits --version {before}", "visits")
    walk.follows(shown, "headrace read visits")
    walk.is_healthy()


@situation("PIN_INVALID")
def a_pin_of_a_version_that_never_was(walk: Walk) -> None:
    shown = walk.fails("headrace pin visits --version 999 --for 1d", "visits")
    assert "its versions: " in shown.text and "--for 1d" in shown.text, shown.text
    walk.goes_well("headrace pin visits --version 0 --for 1d")
    walk.goes_well("headrace pin visits --version 0 --remove")


@situation("RETENTION_TOO_SHORT")
def a_vacuum_of_an_hour(walk: Walk) -> None:
    stray = files(walk).table("visits") / "part-00000-stray.parquet"
    stray.write_bytes(b"stray")
    two_days_ago = time.time() - 2 * 86400
    os.utime(stray, (two_days_ago, two_days_ago))
    walk.does("a writer has left a file in the folder of the table two days ago")
    shown = walk.fails("headrace maintain visits --only vacuum --retain 1h", "a retention of 1h is below 7d")
    assert "0 of 1 table maintained, 1 with a refusal" in shown.text, shown.text
    assert shown.text.count("is below 7d") == 1, shown.text
    walk.follows(shown, "headrace maintain visits --only vacuum --retain 7d")
    walk.follows(shown, "headrace maintain visits --only vacuum --retain 1h --allow-short-retention")
    assert not stray.exists()
    walk.is_healthy()


@situation("TABLE_IN_USE", spoils=True)
def a_declared_table_is_removed(walk: Walk) -> None:
    walk.edit({SQL: EXTRA})
    walk.goes_well("headrace run")
    shown = walk.fails("headrace tables extra --remove", f"{SQL}:1:26")
    walk.edit({SQL: None})
    walk.follows(shown, "headrace run")
    walk.follows(shown, "headrace tables extra --remove")
    walk.is_healthy()


@situation("LOG_SETTING_INVALID")
def a_misspelt_level(walk: Walk) -> None:
    shown = walk.fails("headrace run", environment={"HEADRACE_LOG_LEVEL": "debg"})
    assert "HEADRACE_LOG_LEVEL=debug" in shown.text, shown.text
    walk.goes_well("headrace run", environment={"HEADRACE_LOG_LEVEL": "debug"})
    walk.is_healthy()


@situation("FILE_EXISTS")
def a_pipeline_where_one_is(walk: Walk) -> None:
    walk.edit({"other/headrace.yml": "name: other\n"})
    shown = walk.fails("headrace init other", "other")
    written = walk.follows(shown, "headrace init other-2")
    assert "other-2/headrace.yml" in written.text, written.text


@situation("DEMO_FOLDER_TAKEN")
def the_folder_of_the_demo_is_taken(walk: Walk) -> None:
    walk.edit({"taken/notes.txt": "mine\n"})
    walk.fails("headrace demo --directory taken", "taken")


@situation("TABLE_UNREADABLE", spoils=True)
def a_data_file_is_damaged(walk: Walk) -> None:
    folder = files(walk)
    table = deltalake.DeltaTable(str(folder.table("visits")))
    file = folder.table("visits") / next(iter(table.to_pyarrow_dataset().files)).rpartition("/")[2]
    walk.breaks(file)
    shown = walk.fails("headrace read visits", f"{file.name} is damaged: it has 5 bytes, the log states ")
    verified = walk.types(next(one for one in shown.commands if one.startswith("headrace verify")))
    assert verified.exit_code == 1 and file.name in verified.text, verified.text
    walk.follows(shown, "headrace full-refresh visits")
    walk.is_healthy()


@situation("VIEW_INPUT_MISSING", spoils=True)
def a_view_before_its_table(walk: Walk) -> None:
    walk.edit(
        {
            SQL: EXTRA.replace("extra", "base")
            .replace("MATERIALIZED VIEW", "STREAMING TABLE")
            .replace("FROM visits", "FROM STREAM visits"),
            "transformations/more.sql": EXTRA.replace("visits", "base"),
        }
    )
    shown = walk.fails("headrace run extra", "transformations/more.sql:1")
    walk.follows(shown, "headrace run base extra")
    walk.is_healthy()


@situation("UPSTREAM_MISSING", spoils=True)
def a_stream_before_its_table(walk: Walk) -> None:
    stream = EXTRA.replace("MATERIALIZED VIEW", "STREAMING TABLE").replace("FROM ", "FROM STREAM ")
    walk.edit(
        {SQL: stream.replace("extra", "base"), "transformations/more.sql": stream.replace("visits", "base")}
    )
    shown = walk.fails("headrace run extra", "transformations/more.sql:1")
    walk.follows(shown, "headrace run base extra")
    walk.is_healthy()


def topic_of(walk: Walk) -> TopicFolder:
    assert isinstance(walk.folder, TopicFolder)
    return walk.folder


@situation("OFFSET_UNKNOWN", "topic")
def an_offset_that_never_was(walk: Walk) -> None:
    shown = walk.fails(f"headrace consume {topic_of(walk).topic} --from 999 --limit 1", "999")
    assert "--from earliest --limit 1" in shown.text, shown.text
    walk.follows(shown, "headrace consume")


@situation("OFFSET_UNKNOWN", "topic")
def a_partition_that_never_was(walk: Walk) -> None:
    shown = walk.fails(f"headrace consume {topic_of(walk).topic} --partition 7 --limit 1", "7")
    walk.follows(shown, "headrace consume")


@situation("TOPIC_NOT_FOUND", "topic")
def a_misspelt_topic_of_a_command(walk: Walk) -> None:
    topic = topic_of(walk).topic
    shown = walk.fails(f"headrace consume {topic}x --from earliest --limit 1")
    assert topic in shown.suggestions, shown.text
    walk.goes_well(f"headrace consume {topic} --from earliest --limit 1")


@situation("RECORD_INVALID", "topic")
def a_file_with_a_bad_line(walk: Walk) -> None:
    folder = topic_of(walk)
    walk.edit({"orders.jsonl": '{"id": 100, "amount": 1}\n{"id": 101, "amount"\n'})
    shown = walk.fails(f"headrace produce {folder.topic} --file orders.jsonl", "orders.jsonl:2")
    assert "tail -n +2 orders.jsonl > orders-from-2.jsonl" in shown.text, shown.text
    folder.ids += [100]
    walk.edit({"orders-from-2.jsonl": '{"id": 101, "amount": 1}\n'})
    walk.goes_well(f"headrace produce {folder.topic} --file orders-from-2.jsonl")
    folder.ids += [101]
    walk.is_healthy()


@situation("SAMPLE_SCHEMA_INVALID", "topic")
def a_misspelt_type_of_samples(walk: Walk) -> None:
    folder = topic_of(walk)
    command = f"headrace produce {folder.topic} --sample --limit 1 --schema 'id LONGG'"
    shown = walk.fails(command, "LONGG")
    assert folder.broker is not None
    folder.broker.create_topic(f"{folder.topic}-s", 1, {})
    walk.goes_well(command.replace(folder.topic, f"{folder.topic}-s").replace("LONGG", shown.suggestions[0]))


@situation("SCHEMA_NOT_INFERRED", "topic")
def a_topic_without_json(walk: Walk) -> None:
    folder = topic_of(walk)
    assert folder.broker is not None
    folder.broker.create_topic(f"{folder.topic}-text", 1, {})
    walk.edit({"lines.txt": "hello\n"})
    walk.goes_well(f"headrace produce {folder.topic}-text --file lines.txt --format text")
    walk.fails(f"headrace infer {folder.topic}-text")


@situation("TOPIC_EXISTS", "topic")
def a_topic_is_created_again(walk: Walk) -> None:
    folder = topic_of(walk)
    shown = walk.fails(f"headrace broker topics create {folder.topic}", folder.topic)
    assert "another name:   headrace broker topics create" in shown.text, shown.text


@situation("INGEST_TABLE_TAKEN", "topic")
def a_table_of_the_pipeline_is_ingested_into(walk: Walk) -> None:
    topic = topic_of(walk).topic
    shown = walk.fails(f"headrace ingest {topic} --table orders --mode append", "orders")
    assert "--table orders_topic --mode append" in shown.text, shown.text
    walk.follows(shown, "headrace ingest")
    walk.is_healthy()


@situation("INGEST_CHANGED", "topic")
def other_options_than_before(walk: Walk) -> None:
    topic = topic_of(walk).topic
    walk.goes_well(f"headrace ingest {topic} --table taken_in --mode append")
    shown = walk.fails(f"headrace ingest {topic} --table taken_in --mode append --cluster-by id", "taken_in")
    assert "--table taken_in_2 --mode append --cluster-by id" in shown.text, shown.text
    walk.follows(shown, "headrace ingest")
    walk.is_healthy()
