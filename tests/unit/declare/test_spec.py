"""``headrace.yml``: what it may say, and where each error points."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.declare.spec import find_spec, load_project
from headrace.errors import (
    HeadraceError,
    ProfileUnknownError,
    SpecAmbiguousError,
    SpecInvalidError,
    SpecNotFoundError,
    SpecUnknownKeyError,
    SpecVariableUnsetError,
    StorageUnsupportedError,
)
from headrace.model.declarations import Trigger
from headrace.storage.mapped_files import mapped_path

Write = Callable[..., Path]


def test_the_shortest_spec_has_working_defaults(write: Write) -> None:
    root = write({}, "name: shop\n")
    settings = load_project(root)
    assert settings.name == "shop"
    assert settings.profile == "dev"
    assert settings.storage.root.local_path == (root / "lake").resolve()
    assert settings.libraries == ("transformations/**",)
    assert settings.kafka.is_embedded
    assert settings.on_data_loss == "refuse"
    assert settings.root == root


def test_every_key_is_read(write: Write) -> None:
    spec = """
name: shop
storage: ./data
catalog: main
database: sales
libraries:
  - glob: {include: pipelines/**}
  - file: one.py
configuration: {spark.sql.shuffle.partitions: 8, spark.x: 1e3, flag: true}
trigger: {interval: 500 ms}
views: {interval: 1 minute}
kafka: {bootstrap.servers: "h:9092", fetch.min.bytes: 10}
on_data_loss: record
consumer_groups: false
max_rejected: 5% of 20 batches
upsert: {index_memory: 512m}
max_value_bytes: 100
runtime: {master: "local[2]", memory: 2g}
"""
    settings = load_project(write({}, spec))
    assert settings.catalog == "main"
    assert (settings.places["storage"].line, settings.places["libraries"].line) == (3, 7)
    assert settings.database == "sales"
    assert settings.libraries == ("pipelines/**", "one.py")
    # Settings keep the text of the file: `1e3` is not 1000.0 to Spark.
    assert settings.configuration == {"spark.sql.shuffle.partitions": "8", "spark.x": "1e3", "flag": "true"}
    assert settings.trigger == Trigger(interval_s=0.5)
    assert settings.view_interval_s == 60
    assert settings.kafka.settings == {"bootstrap.servers": "h:9092", "fetch.min.bytes": "10"}
    assert settings.on_data_loss == "record"
    assert settings.consumer_groups is False
    assert (str(settings.max_rejected), settings.max_value_bytes) == ("5% of 20 batches", 100)
    assert settings.index_memory == 512 << 20
    assert (settings.master, settings.memory) == ("local[2]", "2g")


PROFILES = """
name: shop
storage: ./lake
kafka:
  bootstrap.servers: embedded
  client.id: me
profiles:
  prod:
    storage: /srv/lake
    kafka:
      bootstrap.servers: ${SHOP_BROKERS}
      client.id:
"""


def test_a_profile_lies_over_the_spec_key_by_key(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_BROKERS", "a:1,b:2")
    settings = load_project(write({}, PROFILES), profile="prod")
    assert settings.storage.root.local_path == Path("/srv/lake")
    # An empty value takes the key of the base away.
    assert settings.kafka.settings == {"bootstrap.servers": "a:1,b:2"}


def test_the_profile_comes_from_the_environment(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_BROKERS", "a:1")
    monkeypatch.setenv("HEADRACE_PROFILE", "prod")
    assert load_project(write({}, PROFILES)).profile == "prod"
    assert load_project(write({}, PROFILES), profile="dev").profile == "dev"


def test_variables_of_other_profiles_need_not_be_set(write: Write) -> None:
    assert load_project(write({}, PROFILES)).kafka.is_embedded


def test_an_unset_variable_is_named_with_its_place(write: Write) -> None:
    with pytest.raises(SpecVariableUnsetError) as caught:
        load_project(write({}, PROFILES), profile="prod")
    assert caught.value.params == {
        "variable": "SHOP_BROKERS",
        "variables": {"SHOP_BROKERS": ["kafka.bootstrap.servers"]},
    }
    assert caught.value.location is not None
    assert (caught.value.location.line, caught.value.location.column) == (11, 26)


def test_a_variable_may_have_a_default_and_be_escaped(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMPTY", "")
    spec = "name: shop\nconfiguration: {a: '${NOPE:-x}', b: '${EMPTY:-y}', c: '$${KEPT}', d: '<${EMPTY}>'}\n"
    assert load_project(write({}, spec)).configuration == {"a": "x", "b": "y", "c": "${KEPT}", "d": "<>"}


def test_the_spec_is_found_upward(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write({"transformations/deep/a.py": ""})
    monkeypatch.chdir(root / "transformations" / "deep")
    assert find_spec() == root / "headrace.yml"
    assert find_spec(root / "headrace.yml") == root / "headrace.yml"


def test_a_folder_that_is_named_is_not_searched_upward(write: Write) -> None:
    root = write({"transformations/a.py": ""})
    with pytest.raises(SpecNotFoundError):
        find_spec(root / "transformations")


def test_overrides_win_over_the_profile(write: Write) -> None:
    settings = load_project(
        write({}), overrides={"storage": "other", "kafka.bootstrap.servers": "x:1", "runtime.memory": "1g"}
    )
    assert settings.storage.root.name == "other"
    assert settings.kafka.bootstrap_servers == "x:1"
    assert settings.memory == "1g"


def test_a_file_address_is_a_local_path(write: Write) -> None:
    settings = load_project(write({}, "name: a\nstorage: file:///srv/my%20lake\n"))
    assert settings.storage.root.local_path == Path("/srv/my lake")


@pytest.mark.parametrize("storage", ["gs://bucket/x", "hdfs:///x", "abfss://c@a.dfs/x", "file://host/x"])
def test_storage_elsewhere_is_refused(write: Write, storage: str) -> None:
    with pytest.raises(StorageUnsupportedError) as caught:
        load_project(write({}, f"name: a\nstorage: {storage}\n"))
    assert caught.value.location is not None
    assert caught.value.location.line == 2


def test_an_unknown_profile_is_refused_with_the_nearest(write: Write) -> None:
    with pytest.raises(ProfileUnknownError) as caught:
        load_project(write({}, PROFILES), profile="prd")
    assert caught.value.params == {"profile": "prd", "known": ["dev", "prod"]}
    assert any("prod" in remedy for remedy in caught.value.remedies)


@pytest.mark.parametrize(
    ("spec", "key", "suggestion", "line", "column"),
    [
        ("name: a\nstorag: x\n", "storag", "storage", 2, 1),
        ("name: a\nruntime: {memry: 2g}\n", "runtime.memry", "memory", 2, 11),
        ("name: a\nkafka: {bootstrap.server: x}\n", "kafka.bootstrap.server", "bootstrap.servers", 2, 9),
        ("name: a\nkafka: {kafka.group.id: x}\n", "kafka.kafka.group.id", "group.id", 2, 9),
        ("name: a\nlibraries: [{glob: {includes: x}}]\n", "libraries.glob.includes", "include", 2, 21),
        # A misspelling in `prod` is found while `dev` is in force.
        ("name: a\nprofiles: {prod: {storge: x}}\n", "profiles.prod.storge", "storage", 2, 19),
        ("name: a\nprofiles: {prod: {name: x}}\n", "profiles.prod.name", None, 2, 19),
    ],
)
def test_an_unknown_key_has_a_place_and_a_suggestion(
    write: Write, spec: str, key: str, suggestion: str | None, line: int, column: int
) -> None:
    with pytest.raises(SpecUnknownKeyError) as caught:
        load_project(write({}, spec))
    assert caught.value.params == {"key": key, "suggestion": suggestion}
    assert caught.value.location is not None
    assert (caught.value.location.line, caught.value.location.column) == (line, column)


def test_an_unknown_key_is_answered_in_one_sentence(write: Write) -> None:
    with pytest.raises(SpecUnknownKeyError) as caught:
        load_project(write({}, "name: a\nstorrage: ./x\n"))
    assert caught.value.summary == "Unknown key `storrage`; did you mean `storage`?"


def test_settings_of_spark_keep_their_lines(write: Write) -> None:
    spec = "name: a\nconfiguration:\n  spark.a: 1\nprofiles:\n  dev:\n    configuration:\n      spark.b: 2\n"
    locations = load_project(write({}, spec)).configuration_locations
    assert {key: location.line for key, location in locations.items()} == {"spark.a": 3, "spark.b": 7}


def test_settings_of_kafka_that_we_do_not_know_pass(write: Write) -> None:
    settings = load_project(write({}, "name: a\nkafka: {some.vendor.setting: 1}\n"))
    assert settings.kafka.settings["some.vendor.setting"] == "1"


@pytest.mark.parametrize(
    ("spec", "key", "line"),
    [
        ("storage: x\n", "name", 1),
        ("name: 5\n", "name", 1),
        ("name: a b\n", "name", 1),
        ("name: a\nviews: 5\n", "views", 2),
        ("name: a\ntrigger:\n  interval: soon\n", "trigger.interval", 3),
        ("name: a\ntrigger: {interval: -1}\n", "trigger.interval", 2),
        ("name: a\ntrigger: continuous\n", "trigger", 2),
        ("name: a\ntrigger: now and then\n", "trigger", 2),
        (
            "name: a\nconfiguration:\n  pipelines.trigger.interval: soon\n",
            "configuration.pipelines.trigger.interval",
            3,
        ),
        ("name: a\nkafka: embedded\n", "kafka", 2),
        ("name: a\nkafka: {bootstrap: {servers: x}}\n", "kafka.bootstrap", 2),
        ("name: a\nkafka:\n  auto.offset.reset: latest\n", "kafka.auto.offset.reset", 3),
        ("name: a\non_data_loss: ignore\n", "on_data_loss", 2),
        ("name: a\nconsumer_groups: maybe\n", "consumer_groups", 2),
        ("name: a\nmax_value_bytes: 0\n", "max_value_bytes", 2),
        ("name: a\nruntime: {memory: lots}\n", "runtime.memory", 2),
        ("name: a\ndatabase: my-db\n", "database", 2),
        ("name: a\nlibraries: []\n", "libraries", 2),
        ("name: a\nlibraries: [x.py]\n", "libraries.0", 2),
        ("name: a\nlibraries:\n- file: x.py\n  glob: {include: y}\n", "libraries.0", 3),
    ],
)
def test_a_wrong_value_has_a_place(write: Write, spec: str, key: str, line: int) -> None:
    with pytest.raises(SpecInvalidError) as caught:
        load_project(write({}, spec))
    assert caught.value.params["key"] == key
    assert caught.value.location is not None
    assert caught.value.location.line == line


@pytest.mark.parametrize(
    ("spec", "trigger"),
    [
        ("trigger: 30 seconds", Trigger(interval_s=30)),
        ("trigger: 2", Trigger(interval_s=2)),
        ("trigger: {interval: 1 minute}", Trigger(interval_s=60)),
        ("trigger: availableNow", Trigger(available_now=True)),
        ("trigger: once", Trigger(available_now=True)),
        ("configuration: {pipelines.trigger.interval: 5 s}", Trigger(interval_s=5)),
        ("configuration: {pipelines.trigger.interval: 5 s}\ntrigger: 1 s", Trigger(interval_s=1)),
        ("views: {interval: 5 s}", Trigger()),
    ],
)
def test_the_trigger_has_several_forms(write: Write, spec: str, trigger: Trigger) -> None:
    assert load_project(write({}, f"name: a\n{spec}\n")).trigger == trigger


@pytest.mark.parametrize("servers", ["h", "a:9092,b", "http://a", "a:"])
def test_an_address_that_can_never_answer_has_a_place(write: Write, servers: str) -> None:
    spec = f'name: shop\nkafka:\n  bootstrap.servers: "{servers}"\n'
    with pytest.raises(SpecInvalidError) as caught:
        load_project(write({}, spec))
    assert caught.value.location is not None
    assert caught.value.location.line == 3
    assert "HOST:PORT" in caught.value.summary


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        ("name: [a\n", 2),
        ("name: a\n\tstorage: x\n", 2),
        ("name: a\nname: b\n", 2),
        ("- name\n", 1),
        ("name: a\nkafka: &k {x: *k}\n", 2),
        ("name: a\nprofiles: [x]\n", 2),
    ],
)
def test_what_is_not_a_mapping_in_yaml_has_a_place(write: Write, spec: str, line: int) -> None:
    with pytest.raises(SpecInvalidError) as caught:
        load_project(write({}, spec))
    assert caught.value.location is not None
    assert caught.value.location.line == line


def test_a_spec_that_cannot_be_read_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "headrace.yml").write_bytes(b"name: \xff\xfe")
    with pytest.raises(HeadraceError) as caught:
        load_project(tmp_path)
    assert caught.value.code == "SPEC_INVALID"


def test_the_spec_of_sparks_pipelines_is_one_of_ours(write: Write) -> None:
    root = write({"spark-pipeline.yml": "name: a\nschema: silver\nstorage: ./lake\n"})
    (root / "headrace.yml").unlink(missing_ok=True)
    assert load_project(root).database == "silver"
    (root / "spark-pipeline.yaml").write_text("name: b\n")
    with pytest.raises(SpecAmbiguousError):
        load_project(root)
    assert load_project(root / "spark-pipeline.yaml").name == "b"
    (root / "headrace.yml").write_text("name: c\n")
    assert load_project(root).name == "c"
    (root / "headrace.yaml").write_text("name: d\n")
    with pytest.raises(SpecAmbiguousError) as caught:
        load_project(root)
    named = Path(caught.value.remedies[0].rpartition("--spec ")[2])
    assert load_project(named).name == "c", "the remedy works as it is printed, in any folder"


def test_ansi_mode_is_turned_off_for_the_whole_pipeline(write: Write) -> None:
    root = write(
        {}, "name: a\ncompatibility: {ansi: false}\nprofiles: {prod: {compatibility: {ansi: true}}}\n"
    )
    assert load_project(root).configuration == {"spark.sql.ansi.enabled": "false"}
    assert load_project(root, profile="prod").configuration == {}
    with pytest.raises(SpecUnknownKeyError):
        load_project(write({}, "name: a\ncompatibility: {ansy: false}\n"))


def test_paths_of_data_start_where_sparks_own_command_reads_them(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write({"shop/spark-pipeline.yml": "name: a\nstorage: ./lake\n", "own/headrace.yml": "name: b\n"})
    monkeypatch.chdir(tmp_path)
    settings = load_project(root / "shop")
    monkeypatch.chdir("/")
    assert mapped_path("landing", settings) == str(tmp_path / "landing")
    # The storage and the files of the pipeline are those of the spec's folder, as everywhere.
    assert str(settings.storage.root) == str(tmp_path / "shop" / "lake")
    assert mapped_path("landing", load_project(root / "own")) == str(tmp_path / "own" / "landing")


MAPPED = """
name: a
configuration: {spark.sql.catalog.glue: org.example.Catalog}
tables: {project.source.*: ../source, samples.x.y: /data/y, old.*: glue, hive.*: spark_catalog}
paths: {"dbfs:/": ./dbfs, /Volumes/main: s3a://main}
"""


def test_names_and_paths_of_other_systems_are_relative_to_the_spec(write: Write) -> None:
    root = write({}, MAPPED)
    settings = load_project(root)
    assert settings.tables.targets == {
        "project.source.*": str(root.parent / "source"),
        "samples.x.y": "/data/y",
        "old.*": "glue",
        "hive.*": "spark_catalog",
    }
    assert settings.paths.targets == {"dbfs:/": str(root / "dbfs"), "/Volumes/main": "s3a://main"}


@pytest.mark.parametrize(
    ("entry", "key"),
    [
        ("tables: {a.b.c: trips}", "tables.a.b.c"),
        ('tables: {"*": ./x}', "tables.*"),
        ("tables: {a..b: ./x}", "tables.a..b"),
        ("tables: {a.b.c.d: ./x}", "tables.a.b.c.d"),
        ("paths: {landing: ./x}", "paths.landing"),
        ("paths: {/: ./x}", "paths./"),
    ],
)
def test_an_entry_that_could_never_apply_is_an_error(write: Write, entry: str, key: str) -> None:
    with pytest.raises(SpecInvalidError) as caught:
        load_project(write({}, f"name: a\n{entry}\n"))
    assert caught.value.params == {"key": key}
    assert caught.value.location is not None
    assert caught.value.location.line == 2


def test_a_spec_without_a_bucket_does_not_import_the_client_of_s3(write: Write) -> None:
    code = (
        "import sys; from pathlib import Path; from headrace.declare.spec import load_project\n"
        "load_project(Path(sys.argv[1])); assert 'headrace.storage.s3.access' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(write({}, "name: shop\n"))], check=True)
