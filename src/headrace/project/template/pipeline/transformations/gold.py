"""Gold: the sum of the sales."""

from pyspark.sql import functions as F

import headrace as hr
from headrace import spark


@hr.materialized_view
def gold():
    """Sales for each name and date. Amounts are decimals, so that their sum is exact."""
    sales = spark.read.table("silver").groupBy("date", "name")
    return sales.agg(F.sum("sales").alias("sales"), F.count("*").alias("count"))
