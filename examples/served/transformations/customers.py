"""A table of PostgreSQL serves an application, and follows a changing table, deletes included.

The address of the database is in `SHOP_DATABASE`, for example `postgresql://shop@localhost/shop`.
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
    "served",
    "postgres",
    {"url": os.environ["SHOP_DATABASE"], "table": "customers", "keys": "id", "create": "true"},
)


@hr.append_flow(target="served")
def serve():
    return hr.read_changes("customers", images="all")
