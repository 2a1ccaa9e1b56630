"""Silver: the sales, parsed from the records of bronze."""

import headrace as hr
from headrace import spark

SALE = "id LONG, date DATE, name STRING, sales DECIMAL(12, 2)"
COORDINATES = ["topic", "partition", "offset"]


@hr.table
@hr.expect_or_quarantine("positive sales", "sales > 0")
def silver():
    """One row for each sale. A sale that is not positive goes to the quarantine, and so does a record that
    cannot be parsed."""
    records = spark.readStream.table("bronze")
    sale = hr.parse_json("value", SALE, at=COORDINATES).alias("sale")
    return records.select(sale, *COORDINATES, "timestamp").select("sale.*", *COORDINATES, "timestamp")
