"""A search index follows only the changed rows of a table, deletes included.

The address of OpenSearch or Elasticsearch is in `SHOP_SEARCH`, for example `http://localhost:9200`.
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

hr.create_sink("found", "opensearch", {"url": os.environ["SHOP_SEARCH"], "index": "customers", "keys": "id"})


@hr.append_flow(target="found")
def index():
    return hr.read_changes("customers", images="all")
