"""Bronze: the records of the topic, unparsed."""

import headrace as hr


@hr.table
def bronze():
    """Every record of the topic `sales`, with its topic, partition and offset."""
    records = hr.read_kafka("sales")
    source = ["_source.topic", "_source.partition", "_source.offset", "_source.timestamp", "_source.headers"]
    return records.select("key", "value", *source)
