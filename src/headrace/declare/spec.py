"""Finds and loads ``headrace.yml`` for one profile."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from headrace import errors
from headrace.declare import spec_checks
from headrace.declare.bundle import BUNDLES, find_bundle, read_bundle, target_names
from headrace.declare.spec_model import BROKERS, CONNECTION, Overridable, Spec
from headrace.declare.spec_values import (
    DOTENV,
    Filler,
    Mapped,
    Scalar,
    Sequence,
    Value,
    build_scalar,
    build_values,
    collect_from_text,
    collect_literals,
    load_dotenv,
    shown_path,
)
from headrace.errors import HeadraceError, SourceLocation, nearest
from headrace.model.alerts import AlertSettings
from headrace.model.declarations import INTERVAL_SETTING, Trigger
from headrace.model.kafka_settings import EMBEDDED, KAFKA_SETTINGS
from headrace.model.maintenance import MaintenanceSettings
from headrace.model.names import TableName
from headrace.model.project import (
    ANSI_SETTING,
    AwsSettings,
    BrokerChoice,
    LineageSettings,
    ProjectSettings,
    S3Settings,
)
from headrace.model.secrets import Redactor, is_secret_key
from headrace.runtime.places import BROKER_VARIABLE, chosen_folder, shared_broker_folder
from headrace.storage.layout import Storage, use_s3

SPEC_NAMES = ("headrace.yml", "headrace.yaml")
SPARK_SPEC_NAMES = ("spark-pipeline.yml", "spark-pipeline.yaml")
"""The specs of Spark's pipelines; a folder may have one of them and no other spec."""
PROFILE_VARIABLE = "HEADRACE_PROFILE"
DEFAULT_PROFILE = "dev"
_NAME_OUTSIDE = "ingest"
"""The name of the pipeline that `headrace ingest` runs outside of a pipeline's folder."""
OWN_FOLDER = ".headrace"
"""The folder beside the spec for what belongs to the pipeline on this machine."""
DEFAULT_STORAGE = "./lake"
DEFAULT_LIBRARIES = ("transformations/**",)


def find_spec(path: Path | None = None) -> Path:
    """The named spec file, or that of a named folder, or the nearest one from the current folder upward."""
    start = Path.cwd() if path is None else path.expanduser().absolute()
    if start.is_file():
        return start
    upward = [start, *start.parents] if path is None else [start]
    for folder in upward:
        # A folder with a spec of another system can have one of ours too, which then counts.
        kinds = (SPEC_NAMES, SPARK_SPEC_NAMES, BUNDLES)
        names = ([name for name in kind if (folder / name).is_file()] for kind in kinds)
        found = next(filter(None, names), [])
        if len(found) > 1:
            named = shlex.quote(shown_path(folder / found[0]))
            raise errors.SpecAmbiguousError(
                f"the folder {folder} has two specs: {' and '.join(found)}",
                remedies=[f"remove one of them, or name one:   headrace run --spec {named}"],
                params={"path": str(folder)},
            )
        if found:
            return folder / found[0]
    shown = str(path) if path is not None else str(Path.cwd())
    where = shown if path is not None else f"{shown}, nor in a folder above it"
    summary = f"{SPEC_NAMES[0]} is not in {where}" if start.is_dir() else f"{shown} does not exist"
    is_folder = path is not None and start.is_dir()
    new = ":   headrace init shop"
    if is_folder:
        new = f" there:   headrace init {shlex.quote(shown_path(start))}"
    raise errors.SpecNotFoundError(
        summary,
        remedies=[
            f"write a new pipeline{new}",
            f"or name the folder that has {SPEC_NAMES[0]} with --project",
        ],
        params={"path": shown},
    )


def load_project(
    path: Path | None = None,
    *,
    profile: str | None = None,
    overrides: Mapping[str, str] | None = None,
    redactor: Redactor | None = None,
    text: str | None = None,
    anywhere: bool = False,
) -> ProjectSettings:
    """Read the spec, merge the profile into it, fill in variables and files, and check the result.

    The profile is the named one, else ``HEADRACE_PROFILE``, else ``dev``. Overrides replace values of the
    file by dotted key: ``{"kafka.bootstrap.servers": "127.0.0.1:9092"}``. The redactor learns the secrets,
    also if an error is raised. ``text`` is the spec in place of a file. ``anywhere``: outside of a pipeline's
    folder, the defaults with the overrides.
    """
    redactor = redactor or Redactor()
    file, is_outside = Path.cwd() / SPEC_NAMES[0], False
    try:
        file = find_spec(path) if text is None else file
    except errors.SpecNotFoundError:
        if path is not None or not anywhere:
            raise
        text, profile, is_outside = f"name: {_NAME_OUTSIDE}\n", profile or DEFAULT_PROFILE, True
    try:
        settings = _load(file, text, profile, overrides or {}, redactor)
    except HeadraceError as error:
        raise redactor.error(error) from error.__cause__
    if is_outside and settings.broker is not None and settings.broker.reason == "pipeline":
        return _with_broker(settings, BrokerChoice(shared_broker_folder(), "outside"))
    return settings


def _choose_broker(spec: Spec, folder: Path) -> BrokerChoice:
    if (chosen := chosen_folder(BROKER_VARIABLE)) is not None:
        return BrokerChoice(chosen, "variable", spec.name)
    if (written := spec.runtime.broker) is not None:
        return BrokerChoice(Path(os.path.normpath(folder / Path(written).expanduser())), "spec", spec.name)
    return BrokerChoice(folder / OWN_FOLDER / "broker", "pipeline", spec.name)


def _with_broker(settings: ProjectSettings, broker: BrokerChoice) -> ProjectSettings:
    kafka = settings.kafka
    if kafka.is_embedded:
        kafka = replace(kafka, broker=broker.folder)
    return replace(settings, broker=broker, kafka=kafka)


def _load(
    file: Path, text: str | None, profile: str | None, overrides: Mapping[str, str], redactor: Redactor
) -> ProjectSettings:
    named_bundle = find_bundle(file) if text is None else None
    if named_bundle is not None:
        # The folder of the bundle is that of the pipeline.
        file, chosen_pipeline = named_bundle
        text = f"bundle: {file.name}\n" + (f"pipeline: {chosen_pipeline}\n" if chosen_pipeline else "")
    shown = shown_path(file)
    text = _text(file, shown) if text is None else text
    try:
        document = build_values(text, shown)
    except HeadraceError:
        collect_from_text(text, redactor)
        raise
    document = _with_own_names(document)
    bundle = _bundle(document, file)
    targets = () if bundle is None else target_names(bundle)
    collect_literals(document, redactor)
    dotenv = load_dotenv(file.parent, shown_path(file.parent / DOTENV))
    profiles = _profiles(document)
    spec_checks.check_keys(document, Spec, also=("profiles",))
    for name, entry in profiles.items():  # all of them: a misspelt key in `prod` is found in `dev`
        spec_checks.check_keys(entry, Overridable, ("profiles", name))
    named = os.environ.get(PROFILE_VARIABLE) or dotenv.get(PROFILE_VARIABLE)
    chosen = profile or named or DEFAULT_PROFILE
    base = Mapped(
        {k: v for k, v in document.items.items() if k != "profiles"}, document.keys, document.location
    )
    merged = _with_profile(base, _chosen(profiles, chosen, shown, targets))
    for key, value in overrides.items():
        merged = _merged(merged, _override(key, value, redactor))
    given = None
    if bundle is not None:
        target = chosen if (profile or named) and chosen in targets else None
        given = read_bundle(bundle, file.parent, target, _plain_value(merged, "pipeline"))
        merged = _merged(given.document(SourceLocation(shown_path(bundle), 1)), merged)
    filler = Filler(file.parent, dotenv, redactor)
    try:
        spec = Spec.model_validate(filler.fill(merged))
    except ValidationError as error:
        raise spec_checks.build_error(error, merged, shown) from error
    brokers = spec_checks.build_brokers(
        spec.kafka.brokers,
        chosen=chosen,
        profiles={name: partial(_with_profile, base, profile) for name, profile in profiles.items()},
        filler=filler,
        folder=file.parent,
        locations=spec_checks.broker_locations(merged),
    )
    settings = replace(_settings(spec, file, chosen, merged, redactor), brokers=brokers)
    if given is not None:
        settings = replace(settings, ignored=given.ignored, packages=given.packages)
    settings = _with_broker(settings, _choose_broker(spec, file.parent))
    # The clients' settings may hold secrets that are not in the spec, such as a decrypted key.
    for connection in (settings.kafka, *brokers.named):
        redactor.add_settings(connection.for_spark())
    return settings


def _with_own_names(document: Mapped) -> Mapped:
    """The document with keys of other systems under the names of ours: `schema` and `parameters`."""
    names = {name: name for name in document.items}
    for theirs, ours in (("schema", "database"), ("parameters", "configuration")):
        if theirs in names and ours not in names:
            names[theirs] = ours
    document = Mapped(
        {names[name]: value for name, value in document.items.items()},
        {names[name]: location for name, location in document.keys.items()},
        document.location,
    )
    configuration, parameters = (document.items.get(key) for key in ("configuration", "parameters"))
    if not (isinstance(configuration, Mapped) and isinstance(parameters, Mapped)):
        return document
    items = {key: value for key, value in document.items.items() if key != "parameters"}
    return Mapped(
        {**items, "configuration": _merged(configuration, parameters)}, document.keys, document.location
    )


def _bundle(document: Mapped, file: Path) -> Path | None:
    name = _plain_value(document, "bundle")
    if name is None:
        return None
    bundle = file.parent / name
    if bundle.is_file():
        return bundle
    raise errors.SpecInvalidError(
        f"`bundle` names {name}, which does not exist",
        location=document.keys["bundle"],
        remedies=["correct the path, which is relative to the folder of the spec"],
        params={"bundle": name},
    )


def _plain_value(document: Mapped, key: str) -> str | None:
    value = document.items.get(key)
    return value.value if isinstance(value, Scalar) and isinstance(value.value, str) else None


def profile_names(file: Path) -> list[str]:
    profiles = _profiles(build_values(_text(file, shown_path(file)), shown_path(file)))
    return sorted({DEFAULT_PROFILE, *profiles})


def _text(file: Path, shown: str) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise errors.SpecInvalidError(f"{shown} cannot be read: {reason}", params={"path": shown}) from error


def _profiles(document: Mapped) -> dict[str, Mapped]:
    entry = document.items.get("profiles")
    if entry is None or (isinstance(entry, Scalar) and entry.value is None):
        return {}
    if not isinstance(entry, Mapped):
        raise errors.SpecInvalidError(
            "profiles must be a mapping of names to settings",
            location=entry.location,
            remedies=["write such as   profiles: {prod: {storage: /srv/lake}}"],
        )
    found = {}
    for name, value in entry.items.items():
        if isinstance(value, Scalar) and value.value is None:
            value = Mapped({}, {}, value.location)
        if not isinstance(value, Mapped):
            raise errors.SpecInvalidError(
                f"profile `{name}` must be a mapping",
                location=value.location,
                remedies=[f"write such as   {name}: {{storage: /srv/lake}}"],
            )
        found[name] = value
    return found


def _chosen(profiles: Mapping[str, Mapped], name: str, shown: str, targets: tuple[str, ...]) -> Mapped:
    if name in profiles:
        return profiles[name]
    if name == DEFAULT_PROFILE or name in targets:
        return Mapped({})
    known = sorted({DEFAULT_PROFILE, *profiles, *targets})
    close = nearest(name, known)
    raise errors.ProfileUnknownError(
        f"{shown} has no profile `{name}`",
        facts=[f"its profiles: {', '.join(known)}"],
        remedies=[f"did you mean {close}?" if close else f"add `{name}:` under `profiles:` in {shown}"],
        params={"profile": name, "known": known},
    )


def _merged(base: Mapped, over: Mapped) -> Mapped:
    """Merge mappings key by key and replace other values; an empty value removes the key."""
    items, keys = dict(base.items), {**base.keys, **over.keys}
    for key, value in over.items.items():
        below = items.get(key)
        if isinstance(value, Scalar) and value.value is None:
            items.pop(key, None)
        elif isinstance(value, Mapped) and isinstance(below, Mapped):
            items[key] = _merged(below, value)
        else:
            items[key] = value
    return Mapped(items, keys, over.location if not base.items else base.location)


def _with_profile(base: Mapped, profile: Mapped) -> Mapped:
    """The spec with a profile. The connection of a service replaces that of the spec, with its address."""
    kafka, below = profile.items.get("kafka"), base.items.get("kafka")
    login = kafka.items.get(CONNECTION) if isinstance(kafka, Mapped) else None
    if isinstance(login, Mapped) and "type" in login.items and isinstance(below, Mapped):
        kept = {k: v for k, v in below.items.items() if k not in (CONNECTION, "bootstrap.servers")}
        base = replace(base, items={**base.items, "kafka": replace(below, items=kept)})
    return _merged(base, profile)


def _override(key: str, text: str, redactor: Redactor) -> Mapped:
    """One override as a spec; what follows ``kafka.`` or ``configuration.`` is one name, with its dots."""
    if is_secret_key(key):
        redactor.add(text)
    redactor.add_logins(text)
    location = SourceLocation(f"override of {key}", 0)
    if (meant := _meant(key)) is not None:
        raise errors.SpecUnknownKeyError(
            f"Unknown key `{key}`; did you mean `{meant}`?",
            location=location,
            remedies=[f"write `{meant}`"],
            params={"key": key, "suggestion": meant},
        )
    value: Value = build_scalar(text, location)
    first, _, rest = key.partition(".")
    section = rest.partition(".")[0]
    if first == "kafka" and section in (BROKERS, CONNECTION) and rest != section:
        inner, rest = rest.removeprefix(f"{section}."), section
        value = Mapped({inner: value}, {inner: location}, location)
    # Other sections have names with dots.
    names = rest.split(".") if first in ("object_storage", "cluster") else [rest]
    for name in reversed(names if rest else []):
        value = Mapped({name: value}, {name: location}, location)
    built = Mapped({first: value}, {first: location}, location)
    spec_checks.check_keys(built, Spec)
    return built


def _meant(key: str) -> str | None:
    """The whole key for one without its mapping, such as ``spark.x``, or for one of a profile."""
    first, _, rest = key.partition(".")
    if first in Spec.model_fields:
        return None
    if first == "spark":
        return f"configuration.{key}"
    if first == "profiles":
        return rest.partition(".")[2] or None
    close = nearest(key, sorted(KAFKA_SETTINGS), 0.85)
    return f"kafka.{close}" if rest and close else None


def _places(merged: Mapped) -> dict[str, SourceLocation]:
    """The locations of the keys of a spec, and of the entries of `libraries` by their numbers."""
    places = {key: value.location for key, value in merged.items.items()}
    libraries = merged.items.get("libraries")
    for number, one in enumerate(libraries.items if isinstance(libraries, Sequence) else ()):
        entry: Value = one
        while isinstance(entry, Mapped) and entry.items:
            entry = next(iter(entry.items.values()))
        places[f"libraries.{number}"] = entry.location
    return places


def _settings(spec: Spec, file: Path, profile: str, merged: Mapped, redactor: Redactor) -> ProjectSettings:
    kafka = spec.kafka.settings
    if profile == DEFAULT_PROFILE:
        kafka.setdefault("bootstrap.servers", EMBEDDED)
    configuration = dict(spec.configuration)
    if not spec.compatibility.ansi:
        configuration.setdefault(ANSI_SETTING, "false")
    entry = merged.items.get("storage")
    s3 = S3Settings(**spec.object_storage.s3.model_dump())
    use_s3(s3, spec.storage, redactor.add, None if entry is None else entry.location)
    libraries = tuple(library.pattern for library in spec.libraries) if spec.libraries else DEFAULT_LIBRARIES
    return ProjectSettings(
        name=spec.name,
        file=file,
        places=_places(merged),
        profile=profile,
        storage=Storage.at(
            spec.storage or DEFAULT_STORAGE, file.parent, None if entry is None else entry.location
        ),
        libraries=libraries,
        database=spec.database or "default",
        catalog=spec.catalog,
        configuration=configuration,
        configuration_locations=_locations(merged, "configuration"),
        secrets=dict(spec.secrets),
        kafka=spec_checks.check_kafka(spec_checks.build_connection(spec.kafka, merged, kafka), file.parent),
        trigger=_trigger(spec, merged),
        view_interval_s=spec.views.interval,
        on_data_loss=spec.on_data_loss,
        expectation_nulls=spec.expectations.nulls,
        max_rejected=spec.max_rejected,
        max_value_bytes=spec.max_value_bytes,
        index_memory=spec.upsert.index_memory,
        duplicate_keys=spec.upsert.duplicate_keys,
        master=spec_checks.named_master(spec),
        memory=spec.runtime.memory,
        s3=s3,
        kinesis=AwsSettings(**spec.kinesis.model_dump()),
        cluster=spec_checks.build_cluster(
            spec, _locations(merged, "cluster"), _locations(merged, "configuration")
        ),
        maintenance=MaintenanceSettings(
            values=spec.maintenance.values,
            tables={
                TableName.parse(name, spec.database or "default", spec.catalog): one.values
                for name, one in spec.maintenance.tables.items()
            },
        ),
        readers=tuple(spec.readers),
        shows_rows=spec.ui.rows,
        metrics_token=spec.metrics.token,
        alerts=_alerts(spec, redactor),
        lineage=_lineage(spec, file),
        consumer_groups=spec.consumer_groups,
        tables=spec_checks.build_tables(spec, file.parent, _locations(merged, "tables")),
        paths=spec_checks.build_paths(spec, file.parent, _locations(merged, "paths")),
        # Spark reads paths in a server, whose working directory is that of the command.
        started_in=Path.cwd() if file.name in SPARK_SPEC_NAMES else None,
        root_path=None if spec.root_path is None else Path(os.path.normpath(file.parent / spec.root_path)),
        redactor=redactor,
    )


def _alerts(spec: Spec, redactor: Redactor) -> AlertSettings:
    for one in spec.alerts.targets.values():
        # Who knows the URL of a web hook can send messages to it.
        for url in filter(None, (one.slack, one.webhook)):
            redactor.add(url)
    return spec.alerts.settings(lambda text: TableName.parse(text, spec.database or "default", spec.catalog))


def _lineage(spec: Spec, file: Path) -> LineageSettings | None:
    found = spec.lineage.settings
    if found is None or found.file is None:
        return found
    return replace(found, file=file.parent.absolute() / found.file.expanduser())


def _locations(merged: Mapped, name: str) -> Mapping[str, SourceLocation]:
    entry = merged.items.get(name)
    return entry.keys if isinstance(entry, Mapped) else {}


def _trigger(spec: Spec, merged: Mapped) -> Trigger:
    """The spec's trigger, else the interval setting of Spark's own pipelines."""
    given = spec.configuration.get(INTERVAL_SETTING)
    if given is None or "trigger" in merged.items:
        return spec.trigger.trigger
    try:
        return Trigger.parse(given)
    except ValueError as error:
        place = _locations(merged, "configuration").get(INTERVAL_SETTING)
        key = f"configuration.{INTERVAL_SETTING}"
        raise spec_checks.key_error(key, str(error), place, ["write such as 5 seconds"]) from None
