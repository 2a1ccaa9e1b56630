"""Tables of a database, read by JDBC: an embedded Derby, whose driver is among Spark's jars."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace import HeadraceError
from headrace.plan.explain import Explanation
from headrace.project.pipeline import Pipeline

CODE = """
import headrace as hr
from headrace import spark


def customers():
    reader = spark.read.format("jdbc").option("url", "{url}").option("dbtable", "customers")
    return reader.option("driver", "{driver}").load().toDF("id", "name")


@hr.materialized_view
def number_of_customers():
    return customers().groupBy().count()


@hr.table
def clicks():
    return hr.read_files("clicks", format="json", schema="id INT").join(customers(), "id").drop("_source")
"""
DERBY = "org.apache.derby.jdbc.EmbeddedDriver"
URL = "jdbc:derby:memory:billing;create=true"


def test_a_table_of_a_database_is_read_by_views_and_joined_with_streams(
    spark: SparkSession, tmp_path: Path
) -> None:
    add_customer(spark, 1, "ada")
    root = tmp_path / "shop"
    (root / "transformations").mkdir(parents=True)
    (root / "clicks").mkdir()
    (root / "headrace.yml").write_text("name: shop\nschema: database_tables\nstorage: ./lake\n")
    code = root / "transformations" / "shop.py"
    code.write_text(CODE.format(url=URL, driver=DERBY))
    click(root, 1)
    with Pipeline.load(root) as pipeline:
        assert pipeline.run().errors == ()
        # The database has no versions, so a view over it is computed in every run.
        add_customer(spark, 2, "bob")
        click(root, 2)
        assert pipeline.run().errors == ()
        assert not pipeline.verify().findings
        assert pipeline.read("number_of_customers").rows == ((2,),)
        assert sorted(pipeline.read("clicks").rows) == [(1, "ada"), (2, "bob")]
    code.write_text(CODE.format(url=URL, driver="org.postgresql.Driver"))
    with Pipeline.load(root) as pipeline, pytest.raises(HeadraceError, match="JDBC driver") as raised:
        pipeline.plan()
    assert "spark.jars" in str(raised.value)


def add_customer(spark: SparkSession, number: int, name: str) -> None:
    rows = spark.createDataFrame([(number, name)], "id INT, name STRING")
    options = {"url": URL, "dbtable": "customers", "driver": DERBY}
    rows.write.format("jdbc").options(**options).mode("append").save()


def click(root: Path, number: int) -> None:
    (root / "clicks" / f"{number}.json").write_text(json.dumps({"id": number}))


def test_a_sink_adds_rows_to_a_table_by_jdbc(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "shop"
    (root / "clicks").mkdir(parents=True)
    (root / "headrace.yml").write_text(
        "name: shop\nschema: jdbc_sink\nstorage: ./lake\nlibraries: [{file: s.py}]\n"
    )
    options = {"url": URL, "dbtable": "clicked", "driver": DERBY}
    (root / "s.py").write_text(
        f"import headrace as hr\nhr.create_sink('clicked', 'jdbc', {options})\n"
        "@hr.append_flow(target='clicked')\ndef click():\n"
        "    return hr.read_files('clicks', format='json', schema='id INT').drop('_source')\n"
    )
    click(root, 1)
    with Pipeline.load(root) as pipeline:
        assert "at least once" in Explanation(pipeline.plan()).to_text(500)
        assert pipeline.run().errors == ()
        click(root, 2)
        assert pipeline.run().errors == ()
    found = spark.read.format("jdbc").options(**options).load().collect()
    assert sorted(row[0] for row in found) == [1, 2]
