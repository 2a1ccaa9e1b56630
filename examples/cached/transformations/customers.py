"""A cache in Redis follows only the changed rows of a table, deletes included.

The address of the server is in `SHOP_CACHE`, for example `redis://localhost:6379/0`.
"""

import os

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

hr.create_sink(
    "cached", "redis", {"url": os.environ["SHOP_CACHE"], "prefix": "customer:", "keys": "id", "value": "hash"}
)


@hr.append_flow(target="cached")
def cache():
    return hr.read_changes("customers", images="all")
