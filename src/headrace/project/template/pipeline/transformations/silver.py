"""Silver: the sales in the records, typed, one row for each."""

import headrace as hr
from headrace import spark

SALE = "id LONG, date DATE, name STRING, sales DECIMAL(12, 2)"
PLACE = ["topic", "partition", "offset"]


@hr.table
def silver():
    """One row for each sale. A record that is no sale stops this flow, named by its place."""
    records = spark.readStream.table("bronze")
    sales = records.select(hr.parse_json("value", SALE, at=PLACE).alias("sale"), *PLACE, "timestamp")
    return sales.select("sale.*", *PLACE, "timestamp")
