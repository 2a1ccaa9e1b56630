"""A second table follows a changing table, deletes included."""

from pyspark.sql import functions as F

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


@hr.temporary_view
def changes_of_customers():
    """Each change of a row: its values after an update, or before a delete."""
    return hr.read_changes("customers").withColumn("city", F.upper("city"))


hr.create_streaming_table("customers_by_city", cluster_by=["city"], comment="The same customers, for reports")
hr.create_auto_cdc_flow(
    target="customers_by_city",
    source="changes_of_customers",
    keys=["id"],
    sequence_by="_commit_version",
    apply_as_deletes="_change_type = 'delete'",
    column_list=["id", "name", "city"],
)
