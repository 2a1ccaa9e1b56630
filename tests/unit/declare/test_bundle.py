"""Asset bundles of Databricks, and folders of their files, become specs."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.declare.bundle import build_specs, describe_ignored
from headrace.declare.spec import load_project
from headrace.errors import ProfileUnknownError, SpecAmbiguousError, SpecInvalidError

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
    assert "configuration:\n  mode: 'all'\n" in spec.text
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
    assert "libraries:\n  - glob: {include: src/**}\n" in spec.text
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
    assert prod.configuration == {"mode": "all", "landing": "./here"}
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
    assert "headrace run --spec databricks.yml --set pipeline=sales" in caught.value.remedies[0]
    assert load_project(bundle, overrides={"pipeline": "second"}).name == "dev_more"
    assert load_project(second).name == "dev_more"
    with pytest.raises(SpecInvalidError):
        load_project(bundle, overrides={"pipeline": "third"})
