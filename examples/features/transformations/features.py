"""The features of a customer are computed again only if one of the customer's orders has changed."""

from pathlib import Path

from delta.tables import DeltaTable
from pyspark.sql import functions as F

import headrace as hr

# Outside of the storage: the function below writes this table, and no flow.
FEATURES = str(Path(__file__).parents[1] / "features_table")


@hr.temporary_view
def order_changes():
    schema = "`order` LONG, customer STRING, amount LONG, version LONG, cancelled BOOLEAN"
    return hr.read_kafka("order-changes", format="json", schema=schema)


hr.create_streaming_table("orders", cluster_by=["customer"], comment="The current row of each order")
hr.create_auto_cdc_flow(
    target="orders",
    source="order_changes",
    keys=["order"],
    sequence_by="version",
    apply_as_deletes="cancelled",
    except_column_list=["cancelled"],
)


@hr.foreach_batch_sink(name="features")
def compute_features(changes, batch_id):
    """Computes the features of the customers of a batch, from all of their orders.

    The same batch can come twice. It gives the same rows then, so nothing is counted twice.
    """
    spark = changes.sparkSession
    customers = changes.select("customer").distinct()
    computed = (
        customers.join(spark.read.table("orders"), "customer", "left")
        .groupBy("customer")
        .agg(
            F.count("order").alias("orders"),
            F.sum("amount").alias("amount"),
            F.lit(batch_id).alias("computed_in"),
        )
    )
    features = DeltaTable.createIfNotExists(spark).location(FEATURES).addColumns(computed.schema).execute()
    (
        features.alias("held")
        .merge(computed.alias("new"), "held.customer = new.customer")
        .whenMatchedDelete("new.orders = 0")
        .whenMatchedUpdateAll()
        .whenNotMatchedInsertAll("new.orders > 0")
        .execute()
    )


@hr.append_flow(target="features")
def changed_orders():
    """The changes of orders; an order that moves to another customer changes both."""
    return hr.read_changes("orders", images="all").select("customer")
