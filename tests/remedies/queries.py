"""Mistakes in queries and in what they read."""

from remedies.declarations import PY, SQL, TARGET, VISITS, python, table, view
from remedies.walk import mistake

mistake(
    "BATCH_QUERY_FOR_STREAMING_TABLE",
    "a table from a batch",
    table('spark.read.table("visits")'),
    table(VISITS),
    at=(PY, "spark.read"),
    names="readStream",
)
mistake(
    "BATCH_QUERY_FOR_STREAMING_TABLE",
    "SQL without STREAM",
    {SQL: "CREATE OR REFRESH STREAMING TABLE extra AS SELECT * FROM visits;\n"},
    {SQL: "CREATE OR REFRESH STREAMING TABLE extra AS SELECT * FROM STREAM visits;\n"},
    at=f"{SQL}:1",
    names="STREAM",
)
mistake(
    "STREAMING_QUERY_FOR_VIEW",
    "a view from a stream",
    view(VISITS),
    view('spark.read.table("visits")'),
    at=(PY, "spark.readStream"),
    names="spark.read",
)
ONCE = '\n@hr.append_flow(target="extra", once=True)\ndef adds():\n    return {query}\n'
mistake(
    "STREAMING_QUERY_FOR_ONCE_FLOW",
    "a flow that is applied once reads a stream",
    python(TARGET + ONCE.format(query=VISITS)),
    python(TARGET + ONCE.format(query='spark.read.table("visits")')),
    python(TARGET + ONCE.format(query=VISITS).replace(", once=True", "")),
    at=(PY, "readStream"),
    names="spark.read",
)
MERGED = (
    '\nhr.create_streaming_table("latest")\n'
    'hr.create_auto_cdc_flow(target="latest", source="visits", keys=["id"], sequence_by="id")\n'
)
mistake(
    "STREAM_OVER_MERGED_TABLE",
    "a stream of a table that changes update",
    table('spark.readStream.table("latest")', more=MERGED),
    table('hr.read_changes("latest")', more=MERGED),
    view('spark.read.table("latest")', more=MERGED),
    table('spark.readStream.option("skipChangeCommits", "true").table("latest")', more=MERGED),
    at=(PY, 'readStream.table("latest")'),
    names='hr.read_changes("latest")',
)
LIVE = f"\n@hr.temporary_view\ndef live():\n    return {VISITS}\n"
mistake(
    "VIEW_READ_MISMATCH",
    "a streaming view that a batch reads",
    view('spark.read.table("live")', more=LIVE),
    table('spark.readStream.table("live")', more=LIVE),
    view('spark.read.table("live")', more=LIVE.replace("readStream", "read")),
    at=(PY, '"live"'),
    names="@hr.table",
)
mistake(
    "ACTION_IN_QUERY",
    "a count in a query",
    view('spark.range(spark.read.table("visits").count())'),
    view('spark.read.table("visits").selectExpr("count(*) AS count")'),
    view("spark.range(value)", more='value = spark.read.table("visits").count()\n'),
    at=(PY, "count()"),
    names='spark.read.table("visits").selectExpr("count(*) AS count")\n        or compute it above',
)
mistake(
    "WRITE_IN_FILE",
    "a file that writes while it is loaded",
    python('spark.range(3).write.format("delta").save("copies")\n'),
    view("spark.range(3)"),
    at=(PY, "write.format"),
    names="@hr.materialized_view",
)
mistake(
    "OPTION_UNSUPPORTED",
    "a setting that hides the statistics of files",
    view("spark.range(3)", 'spark_conf={"spark.databricks.delta.stats.collect": "false"}'),
    view("spark.range(3)"),
    at=PY,
    names="remove",
)
mistake(
    "OPTION_UNKNOWN",
    "a misspelt setting of a flow",
    view("spark.range(3)", 'spark_conf={"spark.sql.shufle.partitions": "2"}'),
    "spark.sql.shufle.partitions",
    at=PY,
)
mistake(
    "OPTION_UNKNOWN",
    "a misspelt option of a reader",
    table('spark.readStream.option("maxFilesPerTriger", 1).table("visits")'),
    "maxFilesPerTriger",
    at=(PY, "Triger"),
)
mistake(
    "OPTION_INVALID",
    "an option with a wrong value",
    table('spark.readStream.option("startingVersion", "first").table("visits")'),
    table('spark.readStream.option("startingVersion", 0).table("visits")'),
    at=(PY, "startingVersion"),
)
mistake(
    "SOURCE_UNSUPPORTED",
    "a socket",
    table('spark.readStream.format("socket").option("host", "h").option("port", 1).load()'),
    table(VISITS),
    at=(PY, "socket"),
    names="topic",
)
LANDING = 'hr.read_files("landing", format="json", schema="id LONG")'
mistake(
    "SOURCE_READ_TWICE",
    "two streams of one folder",
    table(f"{LANDING}.union({LANDING})"),
    python(f"\n@hr.table\ndef extra():\n    reads = {LANDING}\n    return reads.union(reads)\n"),
    at=(PY, "union"),
    names="variable within the function",
)
mistake(
    "STREAMING_UNSUPPORTED",
    "a sort of a stream",
    table(f'{VISITS}.orderBy("id")'),
    view('spark.read.table("visits").orderBy("id")'),
    table(VISITS),
    at=(PY, "orderBy"),
    names="@hr.materialized_view, and read with spark.read",
)
SENDS = f'\n@hr.append_flow(target="out")\ndef sends():\n    return {VISITS}.selectExpr("page AS value")\n'
SINK = SENDS + '\nhr.create_sink("out", "delta", {"path": "./sent"})\n'
mistake(
    "SINK_INVALID",
    "a query that reads a sink",
    table('spark.readStream.table("out")', more=SINK),
    table(VISITS, more=SINK),
    at=(PY, 'readStream.table("out")'),
    names=f"what its flow `sends` ({PY}:7) reads, perhaps with other columns than the sink:   {VISITS}",
)
mistake(
    "QUERY_INVALID",
    "a query without a return",
    table("None"),
    table(VISITS),
    view('spark.read.table("visits")'),
    at=(PY, "return None"),
    names='return spark.readStream.table("NAME")',
)
mistake(
    "ARGUMENT_INVALID",
    "a query with parameters",
    python("\n@hr.materialized_view\ndef extra(page):\n    return spark.range(3)\n"),
    python("\n@hr.materialized_view\ndef extra(page='p1'):\n    return spark.range(3)\n"),
    at=PY,
    names="default",
)
mistake(
    "QUERY_FAILED",
    "a function that Spark does not know",
    {SQL: "CREATE OR REFRESH MATERIALIZED VIEW extra AS\nSELECT lowr(page) AS page FROM visits;\n"},
    "lowr",
    at=f"{SQL}:2",
    names="the function `lowr` does not exist",
)
mistake(
    "QUERY_FAILED",
    "a query that raises",
    view("spark.range(len(None))"),
    view("spark.range(3)"),
    at=(PY, "len"),
)
FILES = 'hr.read_files("{folder}", format="json")'
mistake(
    "FILES_NOT_FOUND",
    "a misspelt folder",
    table(FILES.format(folder="landng")),
    table(FILES.format(folder="landing")),
    at=(PY, "landng"),
    names="landng",
)
mistake(
    "FILES_NOT_FOUND",
    "an empty folder",
    {**table(FILES.format(folder="empty")), "empty/.keep": ""},
    table('hr.read_files("empty", format="json", schema="id LONG, name STRING")'),
    at=(PY, "empty"),
    names='schema="id LONG, name STRING"',
)
mistake(
    "SNAPSHOT_MISSING",
    "a folder without a snapshot",
    {
        **python(
            TARGET
            + 'hr.create_auto_cdc_from_snapshot_flow(target="extra", source="./snapshots", keys=["id"])\n'
        ),
        "snapshots/.keep": "",
    },
    {"snapshots/1.json": '{"id": 1}\n'},
    at=PY,
)
