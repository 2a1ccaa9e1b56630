"""Asset bundles of Databricks, and folders of their files, become specs."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.declare.loader import load_declarations
from headrace.declare.new_specs import build_specs, describe_ignored
from headrace.declare.spec import load_project
from headrace.errors import (
    PipelineFileFailedError,
    ProfileUnknownError,
    SpecAmbiguousError,
    SpecInvalidError,
    SpecVariableUnsetError,
)

BUNDLE = """
bundle: {name: shop}
include: [resources/*.yml]
variables:
  catalog: {default: main}
  landing: {default: "/Volumes/${var.catalog}/landing"}
  warehouse: {description: no default}
targets:
  dev: {mode: development, default: true}
  prod:
    variables: {catalog: prod_main}
    resources: {pipelines: {sales: {configuration: {mode: all}}}}
"""
PIPELINE = """
resources:
  pipelines:
    sales:
      name: "[${bundle.target}] sales"
      catalog: ${var.catalog}
      schema: sales_${bundle.target}
      serverless: true
      root_path: ../src
      libraries:
        - notebook: {path: ../src/orders}
        - file: {path: ../src/views.sql}
        - glob: {include: ../src/more/**}
      configuration:
        landing: ${var.landing}
        warehouse: ${var.warehouse}
"""
CODE = """
import dlt

@dlt.table
def orders():
    return spark.readStream.table("main.sales_dev.raw").join(spark.read.table("other.raw.customers"), "id")

@dlt.table
def files():
    return spark.readStream.format("cloudFiles").load("/Volumes/main/landing")
"""


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    for name, text in {
        "databricks.yml": BUNDLE,
        "resources/sales.pipeline.yml": PIPELINE,
        "src/orders.py": CODE,
        "src/views.sql": "CREATE MATERIALIZED VIEW v AS SELECT 1 AS a",
        "src/more/deep/a.py": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path / "databricks.yml"


def test_a_pipeline_of_a_bundle_becomes_a_spec(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (spec,) = build_specs(bundle, bundle.parent)
    spec.file.write_text(spec.text)
    monkeypatch.setenv("BUNDLE_VAR_warehouse", "w")
    settings = load_project(bundle.parent)
    assert (settings.name, settings.catalog, settings.database) == ("dev_sales", "main", "sales_dev")
    assert settings.libraries == ("src/orders.py", "src/views.sql", "src/more/**")
    assert settings.configuration == {"landing": "/Volumes/main/landing", "warehouse": "w"}
    # Names with the catalog of the pipeline are its own.
    assert settings.tables.targets == {"other.raw.customers": str(bundle.parent / "customers")}
    assert settings.paths.targets == {"/Volumes": str(bundle.parent / "volumes")}
    ignored, unset = describe_ignored((spec,))
    assert ignored.endswith("headrace.yml: no meaning here: serverless")
    assert unset.endswith("in the environment or in .env: ${BUNDLE_VAR_warehouse}")


def test_a_target_has_its_own_variables_and_settings(bundle: Path) -> None:
    (spec,) = build_specs(bundle, bundle.parent / "here", "prod")
    assert "catalog: prod_main\ndatabase: sales_prod\n" in spec.text
    assert "  mode: 'all'\n" in spec.text
    assert "  - file: ../src/orders.py\n" in spec.text
    with pytest.raises(SpecInvalidError):
        build_specs(bundle, bundle.parent, "other")


def test_each_of_several_pipelines_gets_a_folder(bundle: Path) -> None:
    other = PIPELINE.replace("sales:\n      name", "second:\n      name")
    (bundle.parent / "resources" / "z.yml").write_text(other)
    specs = build_specs(bundle, bundle.parent)
    assert [spec.file.relative_to(bundle.parent) for spec in specs] == [
        Path("sales/headrace.yml"),
        Path("second/headrace.yml"),
    ]


def test_a_folder_of_files_becomes_a_spec(bundle: Path) -> None:
    (spec,) = build_specs(bundle.parent / "src", bundle.parent)
    # `src/more` has no file of a pipeline.
    assert "libraries:\n  - file: src/orders.py\n  - file: src/views.sql\n" in spec.text
    assert "other.raw.customers: ./customers   # src/orders.py:6\n" in spec.text


def test_a_bundle_is_read_as_a_spec(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUNDLE_VAR_warehouse", "w")
    settings = load_project(bundle.parent)
    assert (settings.name, settings.catalog, settings.database) == ("dev_sales", "main", "sales_dev")
    assert (settings.file, settings.root_path) == (bundle, bundle.parent / "src")
    assert settings.libraries == ("src/orders.py", "src/views.sql", "src/more/**")
    assert settings.configuration == {"landing": "/Volumes/main/landing", "warehouse": "w"}
    assert settings.ignored == ("serverless",)
    prod = load_project(bundle, profile="prod", overrides={"configuration.landing": "./here"})
    assert (prod.catalog, prod.database) == ("prod_main", "sales_prod")
    # Databricks merges the settings of a target key by key.
    assert prod.configuration == {"mode": "all", "landing": "./here", "warehouse": "w"}
    with pytest.raises(ProfileUnknownError):
        load_project(bundle, profile="other")


def test_text_that_is_no_variable_stays(bundle: Path) -> None:
    file = bundle.parent / "resources" / "sales.pipeline.yml"
    file.write_text(PIPELINE.replace("${var.warehouse}", """'${file("a.avsc")}'"""))
    assert load_project(bundle).configuration["warehouse"] == '${file("a.avsc")}'


def test_a_spec_adds_to_a_bundle(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUNDLE_VAR_warehouse", "w")
    text = "bundle: databricks.yml\ndatabase: mine\npaths: {/Volumes: ./volumes}\nparameters: {mode: some}\n"
    (bundle.parent / "headrace.yml").write_text(text)
    settings = load_project(bundle.parent)
    assert (settings.name, settings.database, settings.file.name) == ("dev_sales", "mine", "headrace.yml")
    assert settings.configuration["mode"] == "some"
    assert settings.paths.targets == {"/Volumes": str(bundle.parent / "volumes")}


def test_one_of_several_pipelines_is_named(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUNDLE_VAR_warehouse", "w")
    second = bundle.parent / "resources" / "z.yml"
    second.write_text(PIPELINE.replace("sales:\n      name", "second:\n      name").replace("sales", "more"))
    with pytest.raises(SpecAmbiguousError) as caught:
        load_project(bundle)
    assert caught.value.params["pipelines"] == ["sales", "second"]
    assert f"headrace run --spec {bundle} --set pipeline=sales" in caught.value.remedies[0]
    assert "pipeline: sales" in caught.value.remedies[1]
    assert load_project(bundle, overrides={"pipeline": "second"}).name == "dev_more"
    assert load_project(second).name == "dev_more"
    with pytest.raises(SpecInvalidError) as wrong:
        load_project(bundle, overrides={"pipeline": "third"})
    assert wrong.value.remedies == ("write the key of one of them:   pipeline: sales",)


COMPLEX = """
bundle: {name: shop}
common: &common
  region: eu
  owner: ${workspace.current_user.short_name}
variables:
  catalog: {default: main}
  files:
    type: complex
    default: [{file: {path: src/orders.py}}, {file: {path: src/views.sql}}]
  settings:
    type: complex
    default: {folder: "/Volumes/${var.catalog}", sizes: [1, 2]}
resources:
  schemas:
    bronze: {name: "bronze_${bundle.target}", catalog_name: "${var.catalog}"}
  volumes:
    landing: {name: landing, catalog_name: "${var.catalog}", schema_name: "${resources.schemas.bronze.name}"}
  pipelines:
    sales:
      catalog: ${resources.schemas.bronze.catalog_name}
      schema: ${resources.schemas.bronze.name}
      libraries: ${var.files}
      environment: {dependencies: [faker==30.1]}
      configuration:
        <<: *common
        folder: ${var.settings.folder}/raw
        size: ${var.settings.sizes[1]}
        volume: ${resources.volumes.landing.volume_path}
        table: ${resources.schemas.bronze.id}.orders
        files: ${workspace.file_path}/src
targets:
  dev:
    default: true
  prod:
    variables: {settings: {folder: /mnt, sizes: [3, 4]}}
"""


def test_variables_have_the_values_of_the_whole_bundle(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle.write_text(COMPLEX)
    monkeypatch.setenv("WORKSPACE_CURRENT_USER_SHORT_NAME", "ada")
    settings = load_project(bundle)
    assert (settings.catalog, settings.database) == ("main", "bronze_dev")
    assert settings.libraries == ("src/orders.py", "src/views.sql")
    assert settings.configuration == {
        "region": "eu",
        "owner": "ada",
        "folder": "/Volumes/main/raw",
        "size": "2",
        "volume": "/Volumes/main/bronze_dev/landing",
        "table": "main.bronze_dev.orders",
        "files": f"{bundle.parent}/src",
    }
    prod = load_project(bundle, profile="prod").configuration
    assert (prod["folder"], prod["size"]) == ("/mnt/raw", "4")


def test_a_variable_without_a_value_is_shown_where_it_is_written(bundle: Path) -> None:
    with pytest.raises(SpecVariableUnsetError) as caught:
        load_project(bundle)
    line = PIPELINE.splitlines().index("        warehouse: ${var.warehouse}") + 1
    file = bundle.parent / "resources" / "sales.pipeline.yml"
    assert (caught.value.location.path, caught.value.location.line) == (str(file), line)
    assert caught.value.remedies[-1].endswith("variables: {warehouse: {default: VALUE}}")
    assert caught.value.summary == "the variable `warehouse` of the bundle has no value"
    # In the default of another variable.
    bundle.write_text(BUNDLE.replace("/Volumes/${var.catalog}/landing", "/Volumes/${var.warehouse}/landing"))
    file.write_text(PIPELINE.replace("${var.warehouse}", "x").replace("${var.landing}", "${var.landing}/raw"))
    with pytest.raises(SpecVariableUnsetError) as caught:
        load_project(bundle)
    assert (caught.value.location.path, caught.value.location.line) == (str(bundle), 6)
    bundle.write_text(BUNDLE.replace("{default: main}", "{default: '${var.landing}'}"))
    with pytest.raises(SpecInvalidError, match="refers to itself"):
        load_project(bundle)


def test_a_folder_whose_bundle_has_no_pipeline_becomes_a_spec(bundle: Path) -> None:
    bundle.write_text("bundle: {name: shop}\nresources: {jobs: {}}\n")
    (spec,) = build_specs(bundle.parent, bundle.parent)
    assert "/src/orders.py" not in spec.text and "other.raw.customers" in spec.text
    with pytest.raises(SpecInvalidError) as caught:
        build_specs(bundle, bundle.parent)
    assert caught.value.remedies == (f"name the folder of the files:   headrace init --from {bundle.parent}",)


def test_the_error_for_a_missing_package_names_it(bundle: Path) -> None:
    bundle.write_text(COMPLEX)
    source = "# Databricks notebook source\n# MAGIC %pip install python-barcodes\n# COMMAND ----------\n"
    (bundle.parent / "src" / "orders.py").write_text(f"{source}import faker")
    with pytest.raises(PipelineFileFailedError) as caught:
        load_declarations(load_project(bundle), lambda: pytest.fail())
    assert caught.value.remedies[0] == "install it beside Headrace:   pip install faker==30.1"
    assert caught.value.facts[0].endswith("databricks.yml:24:36 installs faker==30.1")
    for written in (source, source.replace("# MAGIC ", "")):
        (bundle.parent / "src" / "orders.py").write_text(f"{written}import barcodes.types")
        with pytest.raises(PipelineFileFailedError) as caught:
            load_declarations(load_project(bundle), lambda: pytest.fail())
        assert caught.value.facts == ("src/orders.py:2 installs python-barcodes",)


def test_a_folder_is_read_where_its_pipeline_is(tmp_path: Path) -> None:
    for name, text in {
        "etl/bronze/a.py": 'import dlt\n@dlt.table(name="main.bronze.a")\ndef a(): ...\n',
        "etl/bronze/deep/b.sql": "CREATE OR REFRESH STREAMING TABLE b AS SELECT * FROM STREAM main.raw.b",
        "etl/silver/c.py": "from pyspark import pipelines as dp\nday = spark.conf.get('etl.day')\n"
        'rows = spark.readStream.option("kafka.bootstrap.servers", f"{day}.example.org:9092")\n',
        "tests/test_a.py": "import pytest",
        "setup.py": "",
        "tools/create.sql": "CREATE TABLE main.raw.b (a INT)",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (spec,) = build_specs(tmp_path, tmp_path)
    assert spec.text.splitlines()[2:] == [
        "catalog: main",
        "storage: ./lake",
        "libraries:",
        "  - glob: {include: etl/**}",
        "configuration:",
        "  etl.day: ${ETL_DAY}   # etl/silver/c.py:2",
        "",
        "# Write the paths that have the data.",
        "tables:",
        "  main.raw.b: ./b   # etl/bronze/deep/b.sql:1",
        "",
        "# Their readers and sinks use Headrace's own broker; or write the name of a profile.",
        "kafka:",
        "  bootstrap.servers: embedded",
        "  brokers:",
        '    "*.example.org:9092": embedded   # etl/silver/c.py:3',
    ]
    assert spec.unset == ("ETL_DAY",)
    spec.file.write_text(spec.text.replace("${ETL_DAY}", "monday"))
    assert load_project(tmp_path).brokers.find("monday.example.org:9092") is not None


def test_a_folder_above_a_bundle_names_the_bundle(tmp_path: Path) -> None:
    (tmp_path / "etl").mkdir()
    (tmp_path / "etl" / "databricks.yml").write_text("bundle: {name: etl}\n")
    code = "import dlt\n@dlt.table\ndef orders():\n    return spark.readStream.table('shop.raw.visits')\n"
    (tmp_path / "etl" / "a.py").write_text(
        f"{code}\n@dlt.view\ndef v():\n    return dlt.read('shop.etl.orders')\n"
    )
    (spec,) = build_specs(tmp_path, tmp_path / "new", storage=str(tmp_path / "data"))
    assert f'storage: "{tmp_path}/data"\n' in spec.text
    # A table of the files that is read with three parts can be the pipeline's own.
    own = spec.text.splitlines()[-3:]
    assert own[0].startswith("# If shop.etl.orders is the table orders of these files")
    assert own[1:] == ["# catalog: shop", "# database: etl"]
    (note,) = describe_ignored((spec,))
    assert note.endswith(
        f"is a bundle; for its pipelines:   headrace init --from {tmp_path}/etl/databricks.yml"
    )
