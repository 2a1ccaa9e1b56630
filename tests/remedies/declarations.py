"""Mistakes in declarations, their arguments and expectations."""

from remedies.walk import Walk, line_of, mistake, situation

PY = "transformations/extra.py"
SQL = "transformations/extra.sql"

HEAD = """\
import headrace as hr
from headrace import spark
from pyspark.sql import functions as F

"""


def python(text: str) -> dict[str, str | None]:
    return {PY: HEAD + text}


def table(query: str, arguments: str = "", more: str = "") -> dict[str, str | None]:
    """A file that declares the streaming table `extra`."""
    return python(f"{more}\n@hr.table({arguments})\ndef extra():\n    return {query}\n")


def view(query: str, arguments: str = "", more: str = "") -> dict[str, str | None]:
    """A file that declares the materialized view `extra`."""
    return python(f"{more}\n@hr.materialized_view({arguments})\ndef extra():\n    return {query}\n")


VISITS = 'spark.readStream.table("visits")'

mistake(
    "EXPECTATION_INVALID",
    "half a condition",
    table(VISITS, more='@hr.expect("sane", "id >")'),
    table(VISITS, more='@hr.expect("sane", "id >= 0")'),
    at=(PY, "sane"),
)
mistake(
    "COLUMN_NOT_FOUND",
    "a misspelt column of an expectation",
    table(VISITS, more='@hr.expect("sane", "idd >= 0")'),
    "idd",
    at=(PY, "sane"),
)
mistake(
    "NOTHING_DECLARED",
    "a file without a decorator",
    {"transformations/visits.py": "def visits():\n    return None\n", "transformations/pages.sql": None},
    at="transformations/visits.py",
    names="@hr.table",
)
mistake(
    "PIPELINE_FILE_FAILED",
    "a file that raises",
    python("number = 1 / 0\n"),
    python("number = 1 / 2\n"),
    at=(PY, "1 / 0"),
)
mistake(
    "PIPELINE_FILE_FAILED",
    "a misspelt function",
    table(VISITS, more="x = hr.read_fils"),
    "read_fils",
    at=(PY, "read_fils"),
)
mistake(
    "PIPELINE_FILE_FAILED",
    "a missing module",
    python("import walk_module\n"),
    {"walk_module.py": ""},
    at=(PY, "walk_module"),
    names="walk_module.py",
)
mistake(
    "SQL_INVALID",
    "a statement without an end of its string",
    {SQL: "CREATE OR REFRESH MATERIALIZED VIEW extra AS\nSELECT 'x FROM visits;\n"},
    {SQL: "CREATE OR REFRESH MATERIALIZED VIEW extra AS\nSELECT 'x' AS x FROM visits;\n"},
    at=f"{SQL}:2",
)
mistake(
    "SQL_INVALID",
    "a misspelt keyword",
    {SQL: "CREATE OR REFRESH STREAMNG TABLE extra AS SELECT * FROM STREAM visits;\n"},
    "STREAMNG",
    at=f"{SQL}:1",
)
PARAMETER = "CREATE OR REFRESH MATERIALIZED VIEW extra AS\nSELECT * FROM visits WHERE page = '${page}';\n"
mistake(
    "SQL_PARAMETER_UNSET",
    "a parameter without a value",
    {SQL: PARAMETER},
    {"headrace.yml": "{spec}configuration: {page: p1}\n"},
    {SQL: f"SET page = p1;\n{PARAMETER}"},
    at=(SQL, "${page}"),
    names="configuration: {page: VALUE}\n        or above the statement:   SET page = ",
)
mistake(
    "PIPELINE_VALUE_UNSET",
    "a widget without a value",
    view(
        'spark.read.table("visits").where(F.col("page") == page)', more='page = dbutils.widgets.get("page")'
    ),
    {"headrace.yml": "{spec}configuration: {page: p1}\n"},
    at=(PY, "dbutils"),
    names="configuration: {page: ",
)
mistake(
    "DUPLICATE_NAME",
    "two views of one name",
    {SQL: "CREATE OR REFRESH MATERIALIZED VIEW pages AS SELECT id FROM visits;\n"},
    {SQL: "CREATE OR REFRESH MATERIALIZED VIEW extra AS SELECT id FROM visits;\n"},
    at=f"{SQL}:1",
    names="transformations/pages.sql:1",
)
FLOW = """\
CREATE STREAMING TABLE extra;
CREATE FLOW a.b AS INSERT INTO extra BY NAME SELECT * FROM STREAM visits;
"""
mistake(
    "MULTIPART_FLOW_NAME_NOT_SUPPORTED",
    "a flow with a schema",
    {SQL: FLOW},
    {SQL: FLOW.replace("a.b", "b")},
    at=f"{SQL}:2",
    names="CREATE FLOW b",
)
mistake(
    "ARGUMENT_INVALID",
    "columns that are a number",
    table(VISITS, "cluster_by=5"),
    table(VISITS, 'cluster_by=["id"]'),
    at=(PY, "@hr.table"),
)
mistake(
    "ARGUMENT_INVALID",
    "a misspelt argument",
    table(VISITS, 'clusterby=["id"]'),
    "clusterby",
    at=(PY, "clusterby"),
)
mistake(
    "FORMAT_UNSUPPORTED",
    "a table in Parquet",
    table(VISITS, 'format="parquet"'),
    table(VISITS),
    at=(PY, "@hr.table"),
)
mistake(
    "FEATURE_UNSUPPORTED",
    "a job from a pipeline",
    python('dbutils.fs.mount("a", "b")\n'),
    python(""),
    at=(PY, "dbutils"),
)
mistake(
    "PLAN_FAILED",
    "two mistakes at once",
    {
        **table('spark.readStream.table("visit")'),
        SQL: "CREATE OR REFRESH MATERIALIZED VIEW more AS SELECT idd FROM visits;\n",
    },
    {
        **table('spark.readStream.table("visits")'),
        SQL: "CREATE OR REFRESH MATERIALIZED VIEW more AS SELECT id FROM visits;\n",
    },
    at="TABLE_NOT_FOUND",
    names="COLUMN_NOT_FOUND",
)
mistake(
    "FEATURE_UNSUPPORTED",
    "a plain table in SQL",
    {SQL: "CREATE TABLE extra AS SELECT id FROM visits;\n"},
    {SQL: "CREATE MATERIALIZED VIEW extra AS SELECT id FROM visits;\n"},
    at=f"{SQL}:1",
    names="CREATE MATERIALIZED VIEW",
)
TARGET = '\nhr.create_streaming_table("extra")\n'
APPEND = f'\n@hr.append_flow(target="extra")\ndef adds():\n    return {VISITS}\n'
CDC = '\nhr.create_auto_cdc_flow(target="extra", source="visits", keys=["id"], sequence_by="id")\n'
mistake(
    "FLOW_KINDS_DIFFER",
    "a flow that appends and a flow that applies changes",
    python(TARGET + APPEND + CDC),
    python(TARGET + APPEND + '\nhr.create_streaming_table("changed")\n' + CDC.replace("extra", "changed")),
    at=PY,
    names="extra",
)
mistake(
    "TABLE_NOT_FOUND", "a misspelt table", table('spark.readStream.table("visit")'), "visit", at=(PY, "visit")
)
mistake(
    "TABLE_NOT_FOUND",
    "a misspelt table in SQL",
    {SQL: "CREATE OR REFRESH MATERIALIZED VIEW extra AS\nSELECT *\nFROM vists;\n"},
    "vists",
    at=(SQL, "vists"),
)
mistake(
    "PATH_UNMAPPED",
    "a path of another system",
    table('hr.read_files("/Volumes/main/raw", format="json", schema="id LONG")'),
    {"headrace.yml": "{spec}paths:\n  /Volumes: ./volumes\n", "volumes/main/raw/a.json": '{"id": 1}\n'},
    at=(PY, "/Volumes"),
    names="/Volumes: ./volumes",
)
CYCLE = '\n@hr.materialized_view\ndef one():\n    return spark.read.table("two")\n\n'
mistake(
    "CYCLE",
    "two views that read each other",
    python(CYCLE + CYCLE.replace("two", "two_").replace("one", "two").replace("two_", "one")),
    python(CYCLE + CYCLE.replace("two", "visits").replace("one", "two")),
    at=PY,
    names="one",
)
mistake(
    "PROPERTY_FORBIDDEN",
    "a property that Headrace needs",
    table(VISITS, 'table_properties={"headrace.pipeline": "mine"}'),
    table(VISITS),
    at=(PY, "@hr.table"),
)
mistake(
    "PROPERTY_INVALID",
    "a misspelt property",
    table(VISITS, 'table_properties={"delta.enableChangeDataFeedd": "true"}'),
    "delta.enableChangeDataFeedd",
    at=(PY, "@hr.table"),
)
mistake(
    "PROPERTY_INVALID",
    "a property with a wrong value",
    table(VISITS, 'table_properties={"delta.logRetentionDuration": "often"}'),
    table(VISITS, 'table_properties={"delta.logRetentionDuration": "interval 30 days"}'),
    at=(PY, "@hr.table"),
    names='"delta.logRetentionDuration": "interval 30 days"',
)
mistake(
    "TABLE_WITHOUT_FLOW",
    "a table that nothing writes",
    python(TARGET),
    python(f'{TARGET}\n@hr.append_flow(target="extra")\ndef add_rows(): return {VISITS}\n'),
    at=(PY, "create_streaming_table"),
    names='@hr.append_flow(target="extra")\n        and in the next line:   def add_rows(): return ',
)
mistake(
    "TARGET_INVALID",
    "a flow into a view",
    python(APPEND.replace('"extra"', '"pages"')),
    python((TARGET + APPEND).replace('"extra"', '"pages_rows"')),
    at=(PY, 'target="pages"'),
    names='hr.create_streaming_table("pages_rows")',
)
mistake(
    "TARGET_INVALID",
    "a misspelt target",
    python(TARGET + APPEND + APPEND.replace("adds", "more").replace('"extra"', '"extr"')),
    "extr",
    at=(PY, '"extr"'),
)
mistake(
    "SCHEMA_INVALID",
    "a misspelt type",
    table(f'{VISITS}.select("id", "page")', 'schema="id LONGG, page STRING"'),
    "LONGG",
    at=(PY, "LONGG"),
)


@situation("SCHEMA_MISMATCH")
def a_column_that_the_schema_lacks(walk: Walk) -> None:
    walk.edit(table(VISITS, 'schema="id LONG"'))
    shown = walk.fails("headrace plan", line_of(walk.folder, PY, "schema="))
    assert '.select("id")' in shown.remedies[0], shown.text
    walk.edit(table(VISITS + '.select("id")', 'schema="id LONG"'))
    walk.goes_well("headrace plan")
    added = shown.remedies[-1].partition("or add to the schema: ")[2]
    walk.edit(table(VISITS, f'schema="id LONG, {added}"'))
    walk.goes_well("headrace plan")
    walk.edit({PY: None})


mistake(
    "FLOW_SCHEMAS_DIFFER",
    "two flows with two types",
    python(
        TARGET
        + APPEND
        + APPEND.replace("adds", "more").replace(
            VISITS, f'{VISITS}.withColumn("id", F.col("id").cast("string"))'
        )
    ),
    python(
        TARGET
        + APPEND
        + APPEND.replace("adds", "more").replace(
            VISITS, f'{VISITS}.withColumn("id", F.col("id").cast("long"))'
        )
    ),
    at=PY,
    names="id",
)
mistake(
    "COLUMN_NOT_FOUND",
    "a misspelt column of a layout",
    table(VISITS, 'cluster_by=["pge"]'),
    "pge",
    at=(PY, "@hr.table"),
)
mistake(
    "COLUMN_NOT_FOUND",
    "a misspelt column in a query",
    {SQL: "CREATE OR REFRESH MATERIALIZED VIEW extra AS\nSELECT id, pge FROM visits;\n"},
    "pge",
    at=(SQL, "pge"),
)
mistake(
    "COLUMN_INVALID",
    "a column with a space",
    table(f'{VISITS}.withColumnRenamed("id", "the id")'),
    table(f'{VISITS}.withColumnRenamed("id", "the id").withColumnRenamed("the id", "the_id")'),
    table(
        f'{VISITS}.withColumnRenamed("id", "the id")', 'table_properties={"delta.columnMapping.mode": "name"}'
    ),
    at=(PY, "the id"),
    names='.withColumnRenamed("the id", "the_id")',
)
LAYOUT = "CREATE STREAMING TABLE extra {} CLUSTER BY (id) AS SELECT * FROM STREAM visits;\n"
mistake(
    "ARGUMENT_INVALID",
    "partitions and clusters",
    {SQL: LAYOUT.replace("{}", "PARTITIONED BY (page)")},
    {SQL: LAYOUT.replace("{} ", "")},
    at=f"{SQL}:1",
    names="keep CLUSTER BY or PARTITIONED BY",
)
