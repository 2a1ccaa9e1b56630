"""PySpark with fewer imports and calls gives the same results."""

from __future__ import annotations

import socket
from datetime import date
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TCP, _NO_DELAY = socket.IPPROTO_TCP, socket.TCP_NODELAY


class Size(Enum):
    BIG = "big"


def test_literals_are_those_of_pyspark(spark: SparkSession) -> None:
    values: dict[str, Any] = {
        "text": ("a", "string"),
        "flag": (True, "boolean"),
        "day": (date(2026, 1, 5), "date"),
        "price": (Decimal("1.50"), "decimal(3,2)"),
        "list": ([1, 2], "array<int>"),
        "choice": (Size.BIG, "string"),
        "numpy": (np.int16(7), "smallint"),
        "array": (np.array([1.5]), "array<double>"),
        "column": (F.lit(5), "int"),
    }
    frame = spark.range(1).select(*(F.lit(value).alias(name) for name, (value, _) in values.items()))
    assert dict(frame.dtypes) == {name: kind for name, (_, kind) in values.items()}
    row = frame.collect()[0]
    assert (row.text, row.day, row.choice, row.numpy, row.column) == ("a", date(2026, 1, 5), "big", 7, 5)


def test_a_java_name_is_looked_up_once(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    first = jvm.org.apache.spark.sql.classic.SparkSession
    assert jvm.org.apache.spark.sql.classic.SparkSession is first
    assert first.active is first.active
    assert jvm.org.apache.spark.NoSuchClass is not jvm.org.apache.spark.NoSuchClass, (
        "a jar can bring it later"
    )


def test_long_answers_of_the_jvm_arrive_whole_and_without_delay(spark: SparkSession) -> None:
    """In the main thread, and in a function that the JVM calls; their connections differ."""
    answers: list[tuple[str, int]] = []

    def ask(rows: DataFrame, _: int) -> None:
        jvm: Any = rows.sparkSession._jvm
        connection = rows.sparkSession.sparkContext._gateway._gateway_client.get_thread_connection()
        for size in (10, 10_000, 1_000_000):
            assert jvm.java.util.Objects.toString("ä" * size) == "ä" * size
        answers.append((type(connection.socket).__name__, connection.socket.getsockopt(_TCP, _NO_DELAY)))

    stream = spark.readStream.format("rate").load().writeStream
    query = stream.trigger(availableNow=True).foreachBatch(ask).start()
    query.awaitTermination()
    ask(spark.range(1), 0)
    assert len(answers) >= 2 and set(answers) == {("_PromptSocket", 1)}
