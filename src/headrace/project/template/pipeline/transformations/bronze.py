"""Bronze: the topic as it is. Nothing is parsed, so nothing can be lost."""

import headrace as hr


@hr.table
def bronze():
    """Every record of the topic `sales`, with its place in Kafka."""
    records = hr.read_kafka("sales")
    place = ["_source.topic", "_source.partition", "_source.offset", "_source.timestamp", "_source.headers"]
    return records.select("key", "value", *place)
