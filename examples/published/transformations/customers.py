"""Other teams follow a changing table by a Kafka topic: the newest row of each key, and its delete.

The topic is compacted, so a new reader gets the whole table from it.
"""

import headrace as hr


@hr.temporary_view
def customer_changes():
    schema = "id LONG, name STRING, city STRING, changed_at TIMESTAMP, op STRING"
    return hr.read_kafka("customer-changes", format="json", schema=schema)


hr.create_streaming_table("customers", comment="The current row of each customer")
hr.create_auto_cdc_flow(
    target="customers",
    source="customer_changes",
    keys=["id"],
    sequence_by="changed_at",
    apply_as_deletes="op = 'delete'",
    except_column_list=["op"],
)

hr.create_sink("published", "kafka", {"topic": "customers", "format": "json", "keys": "id"})


@hr.append_flow(target="published")
def publish():
    return hr.read_changes("customers", images="all")
