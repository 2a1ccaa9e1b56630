"""Records and topics that a flow refuses, and chosen starts."""

import deltalake

from proof.ledger import expire, recreate_topic
from proof.test_topic import keep_log, restore_log, stopped
from remedies.commands import topic_of
from remedies.walk import Walk, mistake, situation

ORDERS = "transformations/orders.py"
HEAD = "import headrace as hr\n\n"
EXTRA = "transformations/extra.py"


def reading(arguments: str) -> dict[str, str | None]:
    """A file with a table that reads the topic."""
    return {EXTRA: f"{HEAD}\n@hr.table\ndef extra():\n    return hr.read_kafka({arguments})\n"}


mistake(
    "TOPIC_NOT_FOUND",
    "a misspelt topic",
    reading('"{topic}x"'),
    "{topic}x",
    at=(EXTRA, "read_kafka"),
    kind="topic",
)
mistake(
    "START_INVALID",
    "an offset that the topic does not have",
    reading('"{topic}", starting_offsets={"{topic}": {"0": 999}}'),
    reading('"{topic}", starting_offsets={"{topic}": {"0": -2}}'),
    at=(EXTRA, "read_kafka"),
    names="-2 for earliest",
    kind="topic",
)
mistake(
    "OPTION_INVALID",
    "a limit that is no number",
    reading('"{topic}", options={"maxOffsetsPerTrigger": "many"}'),
    reading('"{topic}", options={"maxOffsetsPerTrigger": "10"}'),
    at=(EXTRA, "read_kafka"),
    kind="topic",
)


@situation("BROKER_UNREACHABLE", "topic")
def an_address_where_nothing_listens(walk: Walk) -> None:
    walk.edit({"headrace.yml": "name: walk\nstorage: ./lake\nkafka: {bootstrap.servers: '127.0.0.1:7'}\n"})
    planned = walk.goes_well("headrace plan")
    assert "cannot reach 127.0.0.1:7 (headrace.yml:3)" in planned.text, planned.text
    walk.fails(f"headrace consume {topic_of(walk).topic} --limit 1", "127.0.0.1:7")
    walk.edit({"headrace.yml": "{spec}"})
    walk.is_healthy()


def stops(walk: Walk, record: str | bytes, arguments: str, repaired: str, names: str) -> None:
    """A record stops the flow; the reader gets other arguments; the old ones are restored."""
    folder = topic_of(walk)
    was = folder.read(ORDERS) or ""
    walk.replace(ORDERS, 'amount DOUBLE"', f'amount DOUBLE", {arguments}')
    walk.does(f"the topic has the record {record!r}")
    folder.send(record)
    shown = walk.fails("headrace run", f"{ORDERS}:")
    assert names in shown.text, (names, shown.text)
    if any(one.startswith("headrace consume") for one in shown.commands):
        walk.follows(shown, "headrace consume")
    walk.replace(ORDERS, arguments, repaired)
    walk.is_healthy()
    walk.edit({ORDERS: was})


QUARANTINE = 'bad_records="quarantine"'
STOP = 'bad_records="stop"'


@situation("RECORD_UNPARSEABLE", "topic")
def a_record_that_is_not_json(walk: Walk) -> None:
    stops(walk, "not json", STOP, QUARANTINE, 'format="raw" and no schema')


@situation("RECORD_NOT_UTF8", "topic")
def a_record_that_is_not_text(walk: Walk) -> None:
    stops(walk, b'{"id": 7, "note": "\xff"}', STOP, QUARANTINE, QUARANTINE)


@situation("RECORD_TOO_LARGE", "topic")
def a_record_that_is_too_large(walk: Walk) -> None:
    record = '{"id": 8, "note": "' + "x" * 200 + '"}'
    stops(walk, record, f"max_value_bytes=100, {STOP}", f"max_value_bytes=100, {QUARANTINE}", QUARANTINE)


@situation("RECORD_DRIFTED", "topic", spoils=True)
def a_record_with_a_new_field(walk: Walk) -> None:
    folder = topic_of(walk)
    record = '{"id": 2000, "amount": 0, "coupon": "a"}'
    evolve = 'drift={"*": "fail", "coupon": "evolve"}'
    folder.ids.append(2000)
    stops(walk, record, 'drift="fail"', evolve, evolve)


@situation("TOPIC_RECREATED", "topic", spoils=True)
def a_topic_is_created_anew(walk: Walk) -> None:
    folder = topic_of(walk)
    walk.does("the topic is deleted and created again")
    recreate_topic(folder.bootstrap, folder.topic, 1)
    folder.produce(2)
    shown = walk.fails("headrace run", f"{ORDERS}:")
    walk.follows(shown, "headrace reset orders")
    walk.is_healthy()


@situation("OFFSETS_EXPIRED", "topic", spoils=True)
def records_expire_before_they_are_read(walk: Walk) -> None:
    folder = topic_of(walk)
    walk.goes_well("headrace run")
    end = len(folder.ids)
    folder.produce(3)
    walk.does("the retention time of a record has passed")
    expire(folder.bootstrap, folder.topic, {0: end + 1})
    del folder.ids[end]
    shown = walk.fails("headrace run", f"{ORDERS}:")
    assert "on_data_loss: record" in shown.text, shown.text
    walk.edit({"headrace.yml": "{spec}on_data_loss: record\n"})
    walk.is_healthy()


@situation("OFFSETS_BEYOND_END", "topic", spoils=True)
def the_broker_loses_records(walk: Walk) -> None:
    folder = topic_of(walk)
    assert folder.broker is not None
    with stopped(folder.broker):
        copies = keep_log(folder.broker, folder.topic)
    kept = len(folder.ids)
    folder.produce(2)
    walk.goes_well("headrace run")
    walk.does("the broker restores an older copy of its log")
    with stopped(folder.broker):
        restore_log(folder.broker, copies)
    del folder.ids[kept:]
    shown = walk.fails("headrace run", f"{ORDERS}:")
    walk.heals(shown)


@situation("OFFSETS_REUSED", "topic", spoils=True)
def the_broker_uses_offsets_again(walk: Walk) -> None:
    folder = topic_of(walk)
    assert folder.broker is not None
    with stopped(folder.broker):
        copies = keep_log(folder.broker, folder.topic)
    kept = len(folder.ids)
    folder.produce(2)
    walk.goes_well("headrace run")
    walk.does("the broker restores an older copy of its log, and gets other records")
    with stopped(folder.broker):
        restore_log(folder.broker, copies)
    del folder.ids[kept:]
    folder.produce(4)
    shown = walk.fails("headrace run", f"{ORDERS}:")
    walk.heals(shown)


@situation("RANGES_READ_AGAIN", "topic", spoils=True)
def a_start_before_what_was_read(walk: Walk) -> None:
    folder = topic_of(walk)
    shown = walk.fails(f"headrace reset orders --from {folder.topic}:0=0")
    walk.follows(shown, "headrace reset orders")
    folder.ids += folder.ids
    walk.is_healthy()


@situation("RANGES_SKIPPED", "topic", spoils=True)
def a_start_after_what_was_not_read(walk: Walk) -> None:
    folder = topic_of(walk)
    end = len(folder.ids)
    folder.produce(2)
    shown = walk.fails(f"headrace reset orders --from {folder.topic}:0={end + 2}")
    walk.follows(shown, "headrace reset orders")
    del folder.ids[end:]
    walk.is_healthy()


@situation("UPSTREAM_LOG_EXPIRED", "topic", spoils=True)
def commits_are_deleted_before_they_are_read(walk: Walk) -> None:
    folder = topic_of(walk)
    for _ in range(2):
        folder.produce()
        walk.goes_well("headrace run orders")
    table = deltalake.DeltaTable(str(folder.table("orders")))
    table.create_checkpoint()
    walk.does("the log of orders loses all commits but the newest")
    for file in sorted((folder.table("orders") / "_delta_log").glob("*.json"))[:-1]:
        file.unlink()
    shown = walk.fails("headrace run", f"{ORDERS}:")
    walk.follows(shown, "headrace full-refresh big")
    walk.is_healthy()


@situation("UPSTREAM_SCHEMA_STALE", "topic", spoils=True)
def a_reader_runs_before_its_table_has_the_column(walk: Walk) -> None:
    folder = topic_of(walk)
    walk.replace(ORDERS, "amount DOUBLE", "amount DOUBLE, note STRING")
    walk.replace(ORDERS, '"id", "amount")', '"id", "amount", "note")')
    folder.produce()
    shown = walk.fails("headrace run big", f"{ORDERS}:")
    walk.follows(shown, "headrace run orders big")
    walk.is_healthy()
