"""``headrace.yml``, read for one profile: where it lies, what it says, and where it is wrong."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from headrace.declare.dotenv_file import NAME as DOTENV, load_dotenv
from headrace.declare.kafka_checks import check_kafka
from headrace.declare.overrides import build_override
from headrace.declare.spec_faults import build_fault, check_keys
from headrace.declare.spec_model import Overridable, Spec
from headrace.declare.spec_values import Filler, collect_from_text, collect_literals
from headrace.declare.yaml_source import Mapped, Scalar, build_values
from headrace.errors import (
    HeadraceError,
    ProfileUnknownError,
    SpecInvalidError,
    SpecNotFoundError,
)
from headrace.model.connections import EMBEDDED, KafkaConnection
from headrace.model.project import ProjectSettings
from headrace.model.secrets import Redactor
from headrace.model.triggers import INTERVAL_SETTING, Trigger
from headrace.storage.layout import Storage

SPEC_NAMES = ("headrace.yml", "headrace.yaml")
PROFILE_VARIABLE = "HEADRACE_PROFILE"
DEFAULT_PROFILE = "dev"
DEFAULT_STORAGE = "./lake"
DEFAULT_LIBRARIES = ("transformations/**",)


def find_spec(path: Path | None = None) -> Path:
    """The spec file: the one named, or the nearest from a folder upward.

    Args:
        path: A spec file, a pipeline's folder, or ``None`` for the current folder.

    Raises:
        SpecNotFoundError: There is none.
    """
    start = Path.cwd() if path is None else path.expanduser().absolute()
    if start.is_file():
        return start
    upward = [start, *start.parents] if path is None else [start]
    for folder in upward:
        for name in SPEC_NAMES:
            if (folder / name).is_file():
                return folder / name
    shown = str(path) if path is not None else str(Path.cwd())
    where = "in it" if path is not None else "here, nor in a folder above"
    summary = f"there is no {SPEC_NAMES[0]} {where}: {shown}" if start.is_dir() else f"there is no {shown}"
    raise SpecNotFoundError(
        summary,
        remedies=[
            "headrace init                  writes a pipeline to start from",
            "headrace plan --project PATH   names the pipeline's folder",
        ],
        params={"path": shown},
    )


def load_project(
    path: Path | None = None,
    *,
    profile: str | None = None,
    overrides: Mapping[str, str] | None = None,
    redactor: Redactor | None = None,
) -> ProjectSettings:
    """Read the spec, lay the profile over it, fill in variables and files, and check all of it.

    Args:
        path: The pipeline's folder or spec file; by default found from the current folder upward.
        profile: The profile's name; else ``HEADRACE_PROFILE``, else ``dev``.
        overrides: Values that win over the file, by dotted key: ``{"storage": "./other",
            "kafka.bootstrap.servers": "127.0.0.1:9092"}``.
        redactor: Learns what is secret, also where an error is raised; a new one by default.

    Raises:
        SpecNotFoundError: There is no spec.
        SpecInvalidError: A value is missing or of the wrong kind, or the file is not YAML.
        SpecUnknownKeyError: A key means nothing.
        SpecVariableUnsetError: A value in force names a variable that is not set.
        SpecFileUnreadableError: A value in force names a file that cannot be read.
        DotenvInvalidError: The ``.env`` file beside the spec cannot be understood.
        ProfileUnknownError: The spec has no such profile.
        StorageUnsupportedError: The storage is of a kind that is not supported.
    """
    redactor = redactor or Redactor()
    file = find_spec(path)
    try:
        return _load(file, profile, overrides or {}, redactor)
    except HeadraceError as error:
        raise redactor.error(error) from error.__cause__


def _load(
    file: Path, profile: str | None, overrides: Mapping[str, str], redactor: Redactor
) -> ProjectSettings:
    shown = _shown(file)
    text = _text(file, shown)
    try:
        document = build_values(text, shown)
    except HeadraceError:
        collect_from_text(text, redactor)
        raise
    collect_literals(document, redactor)
    dotenv = load_dotenv(file.parent, _shown(file.parent / DOTENV))
    profiles = _profiles(document)
    check_keys(document, Spec, also=("profiles",))
    for name, entry in profiles.items():  # all of them: a misspelling in `prod` is found in `dev`
        check_keys(entry, Overridable, ("profiles", name))
    named = os.environ.get(PROFILE_VARIABLE) or dotenv.get(PROFILE_VARIABLE)
    chosen = profile or named or DEFAULT_PROFILE
    base = Mapped(
        {k: v for k, v in document.items.items() if k != "profiles"}, document.keys, document.location
    )
    merged = _merged(base, _chosen(profiles, chosen, shown))
    for key, value in overrides.items():
        merged = _merged(merged, build_override(key, value, redactor))
    filler = Filler(file.parent, dotenv, redactor)
    settings = _settings(_validated(merged, filler, shown), file, chosen, merged, redactor)
    # The forms that the clients are given may hold what stands nowhere in the spec: a decrypted key.
    redactor.add_settings(settings.kafka.for_spark())
    return settings


def profile_names(file: Path) -> list[str]:
    """The names of a spec's profiles, with the default one.

    Raises:
        SpecInvalidError: The spec cannot be read.
    """
    profiles = _profiles(build_values(_text(file, _shown(file)), _shown(file)))
    return sorted({DEFAULT_PROFILE, *profiles})


def _text(file: Path, shown: str) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise SpecInvalidError(f"{shown} cannot be read: {reason}", params={"path": shown}) from error


def _shown(file: Path) -> str:
    """The spec's path as the user would type it."""
    return str(file.relative_to(Path.cwd())) if file.is_relative_to(Path.cwd()) else str(file)


def _profiles(document: Mapped) -> dict[str, Mapped]:
    entry = document.items.get("profiles")
    if entry is None or (isinstance(entry, Scalar) and entry.value is None):
        return {}
    if not isinstance(entry, Mapped):
        raise SpecInvalidError("profiles must be a mapping of names to settings", location=entry.location)
    found = {}
    for name, value in entry.items.items():
        if isinstance(value, Scalar) and value.value is None:
            value = Mapped({}, {}, value.location)
        if not isinstance(value, Mapped):
            raise SpecInvalidError(f"profile `{name}` must be a mapping", location=value.location)
        found[name] = value
    return found


def _chosen(profiles: Mapping[str, Mapped], name: str, shown: str) -> Mapped:
    if name in profiles:
        return profiles[name]
    if name == DEFAULT_PROFILE:
        return Mapped({})
    known = sorted({DEFAULT_PROFILE, *profiles})
    close = difflib.get_close_matches(name, known, n=1)
    raise ProfileUnknownError(
        f"{shown} has no profile `{name}`",
        facts=[f"it has: {', '.join(known)}"],
        remedies=[f"did you mean {match}?" for match in close]
        or [f"add `{name}:` under `profiles:` in {shown}"],
        params={"profile": name, "known": known},
    )


def _merged(base: Mapped, over: Mapped) -> Mapped:
    """Mappings merge key by key, everything else is replaced; an empty value takes the key away."""
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


def _validated(merged: Mapped, filler: Filler, shown: str) -> Spec:
    try:
        return Spec.model_validate(filler.fill(merged))
    except ValidationError as error:
        raise build_fault(error, merged, shown) from error


def _settings(spec: Spec, file: Path, profile: str, merged: Mapped, redactor: Redactor) -> ProjectSettings:
    kafka = dict(spec.kafka)
    if profile == DEFAULT_PROFILE:
        kafka.setdefault("bootstrap.servers", EMBEDDED)
    entry = merged.items.get("kafka")
    places = {k: v for k, v in entry.keys.items() if k in kafka} if isinstance(entry, Mapped) else {}
    libraries = tuple(library.pattern for library in spec.libraries) if spec.libraries else DEFAULT_LIBRARIES
    return ProjectSettings(
        name=spec.name,
        file=file,
        profile=profile,
        storage=_storage(spec.storage or DEFAULT_STORAGE, file, merged),
        libraries=libraries,
        database=spec.database or "default",
        catalog=spec.catalog,
        configuration=dict(spec.configuration),
        kafka=check_kafka(KafkaConnection(kafka, places), file.parent),
        trigger=_trigger(spec, merged),
        view_interval_s=spec.views.interval,
        on_data_loss=spec.on_data_loss,
        master=spec.runtime.master,
        memory=spec.runtime.memory,
        consumer_groups=spec.consumer_groups,
        redactor=redactor,
    )


def _trigger(spec: Spec, merged: Mapped) -> Trigger:
    """The spec's own trigger, else the one that other pipelines have among their settings."""
    given = spec.configuration.get(INTERVAL_SETTING)
    if given is None or "trigger" in merged.items:
        return spec.trigger.trigger
    try:
        return Trigger.parse(given)
    except ValueError as error:
        entry = merged.items["configuration"]
        place = entry.keys.get(INTERVAL_SETTING) if isinstance(entry, Mapped) else None
        key = f"configuration.{INTERVAL_SETTING}"
        raise SpecInvalidError(f"`{key}` {error}", location=place, params={"key": key}) from None


def _storage(text: str, file: Path, merged: Mapped) -> Storage:
    entry = merged.items.get("storage")
    return Storage.at(text, file.parent, None if entry is None else entry.location)
