"""Asset bundles of Databricks (`databricks.yml`) as specs, with the values of their variables."""

from __future__ import annotations

import getpass
import os
import re
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.declare.pipeline_files import relative_path
from headrace.declare.spec_values import (
    BUNDLE_PREFIX,
    Mapped,
    Scalar,
    Sequence,
    Value,
    build_values,
    shown_path,
)
from headrace.errors import SourceLocation, SpecAmbiguousError, SpecInvalidError, did_you_mean
from headrace.model.texts import option_text

BUNDLES = ("databricks.yml", "databricks.yaml")
_NO_VARIABLE = re.compile(r"\$\{(?!\w+\})")
_SUFFIXES = ("", ".py", ".sql", ".ipynb")
_KEPT = frozenset(
    {"name", "catalog", "schema", "target", "libraries", "configuration", "parameters", "root_path"}
)
"""The keys of a pipeline that a spec takes over."""


@dataclass(frozen=True)
class BundlePipeline:
    key: str
    values: Mapped
    file: Path  # the file that declares it


@dataclass(frozen=True)
class Bundle:
    target: str
    pipelines: tuple[BundlePipeline, ...]
    variables: BundleVariables

    def settings(self, pipeline: BundlePipeline, folder: Path) -> BundleSettings:
        self.variables.unset.clear()
        values = self.variables.fill(pipeline.values)
        assert isinstance(values, Mapped)
        name = _text(values.items.get("name")) or pipeline.key
        name = re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip("_.-") or pipeline.key
        settings = {"name": _scalar(name, _location(values, "name"))}
        for ours, theirs in (("catalog", ("catalog",)), ("database", ("schema", "target"))):
            found = next((key for key in theirs if _text(values.items.get(key))), None)
            if found:
                settings[ours] = _scalar(_text(values.items[found]), values.items[found].location)
        code = _directory(values, pipeline.file)
        if root_path := _text(values.items.get("root_path")):
            code = _directory(values.items["root_path"], pipeline.file) / root_path
            settings["root_path"] = _scalar(relative_path(code, folder), values.items["root_path"].location)
        libraries = tuple(_libraries(values.items.get("libraries"), pipeline.file, folder))
        if not libraries:
            everything = f"{relative_path(code, folder)}/**".removeprefix("./")
            libraries = (("glob", _scalar(everything, values.location)),)
        given = mapping(values.items.get("environment")).items.get("dependencies")
        items = given.items if isinstance(given, Sequence) else ()
        return BundleSettings(
            values=settings,
            libraries=libraries,
            configuration={
                key: _configured(value)
                for part in ("configuration", "parameters")
                for key, value in mapping(values.items.get(part)).items.items()
            },
            ignored=tuple(sorted(set(values.items) - _KEPT)),
            unset=tuple(self.variables.unset),
            packages={_text(one): one.location for one in items if _text(one)},
        )


@dataclass(frozen=True)
class BundleSettings:
    values: Mapping[str, Scalar]  # the keys and values of a spec, without `libraries` and `configuration`
    # The patterns of its files, with `glob` or `file`, relative to a folder.
    libraries: tuple[tuple[str, Scalar], ...]
    configuration: Mapping[str, Value] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    unset: tuple[str, ...] = ()
    packages: Mapping[str, SourceLocation] = field(default_factory=dict)

    def document(self, at: SourceLocation) -> Mapped:
        libraries: list[Value] = []
        for kind, pattern in self.libraries:
            include = _mapped({"include": pattern}, pattern.location) if kind == "glob" else pattern
            libraries.append(_mapped({kind: include}, pattern.location))
        found: dict[str, Value] = {**self.values, "libraries": Sequence(tuple(libraries), at)}
        if self.configuration:
            found["configuration"] = _mapped(self.configuration, at)
        return _mapped(found, at)


def find_bundle(file: Path) -> tuple[Path, str | None] | None:
    """The bundle that declares or includes a file, and the file's pipeline; ``None`` for other files."""
    if file.name in BUNDLES:
        return file, None
    above = (folder / name for folder in file.absolute().parents for name in BUNDLES)
    bundle = next((one for one in above if one.is_file()), None)
    if bundle is None or file.suffix not in (".yml", ".yaml"):
        return None
    declared = mapping(mapping(_document(file).items.get("resources")).items.get("pipelines")).items
    return (bundle, next(iter(declared)) if len(declared) == 1 else None) if declared else None


def target_names(bundle: Path) -> tuple[str, ...]:
    return tuple(mapping(_document(bundle).items.get("targets")).items)


def read_bundle(bundle: Path, folder: Path, target: str | None, pipeline: str | None) -> BundleSettings:
    loaded = load_bundle(bundle, target)
    keys = [one.key for one in loaded.pipelines]
    shown = shown_path(bundle)
    folder_name = shlex.quote(shown_path(bundle.parent))
    if not keys or (pipeline is not None and pipeline not in keys):
        problem = f"declares no pipeline `{pipeline}`" if pipeline and keys else "declares no pipeline"
        raise SpecInvalidError(
            f"{shown} {problem}",
            location=SourceLocation(shown, 1),
            facts=[f"its pipelines: {', '.join(keys)}"] if keys else [],
            remedies=[
                f"write the key of one of them:   pipeline: {keys[0]}"
                if keys
                else f"write a spec for its files:   headrace init --from {folder_name}"
            ],
            params={"path": str(bundle), "pipeline": pipeline, "known": keys},
        )
    if pipeline is None and len(keys) > 1:
        raise SpecAmbiguousError(
            f"{shown} has {len(keys)} pipelines: {', '.join(keys)}",
            facts=[f"{one.key} is declared in {one.values.location}" for one in loaded.pipelines],
            remedies=[
                f"name one:   headrace run --spec {shown} --set pipeline={keys[0]}",
                f"or write headrace.yml with two lines:   bundle: {bundle.name}   and   pipeline: {keys[0]}",
            ],
            params={"path": str(bundle), "pipelines": keys},
        )
    return loaded.settings(next(one for one in loaded.pipelines if pipeline in (None, one.key)), folder)


def load_bundle(file: Path, target: str | None) -> Bundle:
    main = _document(file)
    documents = [(file, main)]
    for pattern in _texts(main.items.get("include")):
        found = sorted(file.parent.glob(pattern))
        documents += [(one, _document(one)) for one in found if one.is_file() and one != file]
    targets = mapping(main.items.get("targets")).items
    marked = next((name for name, one in targets.items() if _is_default(one)), None)
    chosen = target or marked or next(iter(targets), "dev")
    if target is not None and target not in targets:
        known = ", ".join(targets) or "none"
        raise SpecInvalidError(
            f"{file} has no target `{target}`",
            facts=[f"its targets: {known}"],
            remedies=did_you_mean(target, targets, "name one of its targets"),
            params={"target": target, "known": list(targets)},
        )
    documents.append((file, mapping(targets.get(chosen))))
    declared: dict[str, Value] = {}
    files: dict[str, Path] = {}
    merged = Mapped({})
    for one, document in documents:
        declared |= mapping(document.items.get("variables")).items
        for key in mapping(mapping(document.items.get("resources")).items.get("pipelines")).items:
            files.setdefault(key, one)
        merged = _joined(merged, document)
    pipelines = mapping(mapping(merged.items.get("resources")).items.get("pipelines")).items
    return Bundle(
        chosen,
        tuple(BundlePipeline(key, mapping(values), files[key]) for key, values in pipelines.items()),
        BundleVariables(merged, declared, chosen, file.parent.absolute()),
    )


def mapping(value: Value | None) -> Mapped:
    """The value if it is a mapping, else an empty one: a key may have no value."""
    return value if isinstance(value, Mapped) else Mapped({})


def _joined(base: Mapped, over: Mapped) -> Mapped:
    """Mappings are merged key by key and lists are joined, as Databricks does; other values are replaced."""
    items = dict(base.items)
    for key, value in over.items.items():
        below = items.get(key)
        if isinstance(value, Mapped) and isinstance(below, Mapped):
            items[key] = _joined(below, value)
        elif isinstance(value, Sequence) and isinstance(below, Sequence):
            items[key] = Sequence((*below.items, *value.items), below.location)
        else:
            items[key] = value
    return Mapped(items, {**over.keys, **base.keys}, base.location if base.items else over.location)


def _document(file: Path) -> Mapped:
    shown = shown_path(file)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecInvalidError(f"{shown} cannot be read", params={"path": str(file)}) from error
    return build_values(text, shown)


def _libraries(value: Value | None, file: Path, folder: Path) -> list[tuple[str, Scalar]]:
    found: list[tuple[str, Scalar]] = []
    for library in value.items if isinstance(value, Sequence) else ():
        for kind, given in mapping(library).items.items():
            named = given
            if isinstance(given, Mapped):
                named = given.items.get("include") or given.items.get("path") or given
            if kind not in ("notebook", "file", "glob") or not _text(named):
                continue
            path = _directory(library, file) / _text(named)
            if kind != "glob":
                path = next((one for suffix in _SUFFIXES if (one := Path(f"{path}{suffix}")).is_file()), path)
            pattern = _scalar(relative_path(path, folder), named.location)
            found.append(("glob" if kind == "glob" else "file", pattern))
    return found


def _directory(value: Value, file: Path) -> Path:
    """The folder where the relative paths of a value start: that of the file in which it is written."""
    written = Path(value.location.path) if value.location.path else file
    return written.absolute().parent


def _configured(value: Value) -> Value:
    if not isinstance(value, Scalar) or value.value is None:
        return value
    # `${NAME}` is a variable of the environment; any other `${` is text.
    return _scalar(_NO_VARIABLE.sub("$${", option_text(value.value)), value.location)


def _is_default(target: Value) -> bool:
    marked: Any = mapping(target).items.get("default")
    return isinstance(marked, Scalar) and marked.value is True


def _texts(value: Value | None) -> list[str]:
    return [_text(one) for one in value.items] if isinstance(value, Sequence) else []


def _text(value: Value | None) -> str:
    """The text of a scalar; empty for other values."""
    return option_text(value.value) if isinstance(value, Scalar) and value.value is not None else ""


def _scalar(text: str, location: SourceLocation) -> Scalar:
    return Scalar(text, text, location)


def _location(values: Mapped, key: str) -> SourceLocation:
    found = values.items.get(key)
    return values.location if found is None else found.location


def _mapped(values: Mapping[str, Value], at: SourceLocation) -> Mapped:
    return Mapped(values, {key: value.location for key, value in values.items()}, at)


_REFERENCE = re.compile(r"\$\{([A-Za-z][\w-]*(?:\.[\w-]+|\[\d+\])+)\}")
_DECLARING = frozenset({"default", "description", "lookup", "type"})
"""The keys of a variable's declaration; any other mapping is the value of a complex variable."""


@dataclass
class BundleVariables:
    """Replaces variables by their values; a variable without one becomes a variable of the environment."""

    document: Mapped  # the bundle with its included files and its target
    declared: Mapping[str, Value]  # the declarations of variables, those of the target last
    target: str
    folder: Path
    unset: dict[str, None] = field(default_factory=dict)

    def fill(self, value: Value, within: tuple[str, ...] = ()) -> Value:
        match value:
            case Mapped():
                filled = {key: self.fill(item, within) for key, item in value.items.items()}
                return Mapped(filled, value.keys, value.location)
            case Sequence():
                return Sequence(tuple(self.fill(item, within) for item in value.items), value.location)
            case Scalar(value=str(text)):
                return self._filled(text, value, within)
            case _:
                return value

    def _filled(self, text: str, scalar: Scalar, within: tuple[str, ...]) -> Value:
        if (whole := _REFERENCE.fullmatch(text)) is not None:
            return self._value(whole[1], scalar.location, within)
        location = scalar.location
        pieces: list[str] = []
        start = 0
        for one in _REFERENCE.finditer(text):
            known = len(self.unset)
            found = self._value(one[1], scalar.location, within)
            if not isinstance(found, Scalar):
                raise SpecInvalidError(
                    f"`{one[0]}` is not a text, so it cannot be a part of one",
                    location=scalar.location,
                    remedies=[f"name one of its fields:   ${{{one[1]}.FIELD}}"],
                    params={"variable": one[1]},
                )
            if len(self.unset) > known:
                # The line that names the variable without a value, maybe the default of another variable.
                location = found.location
            pieces += [text[start : one.start()], option_text(found.value)]
            start = one.end()
        joined = "".join([*pieces, text[start:]])
        return Scalar(joined, joined, location)

    def _value(self, name: str, location: SourceLocation, within: tuple[str, ...]) -> Value:
        if name in within:
            raise SpecInvalidError(
                f"the variable `{name}` refers to itself",
                location=location,
                facts=[" -> ".join((*within[within.index(name) :], name))],
                remedies=["give one of them a value"],
                params={"variable": name},
            )
        first, *rest = re.findall(r"[\w-]+", name)
        found: Value | str | None
        if first in ("var", "variables"):
            if first == "variables" and rest[-1:] in (["default"], ["value"]):
                del rest[-1]
            bare = f"{BUNDLE_PREFIX}{rest[0]}"
            found = os.environ.get(bare, _below(_default(self.declared.get(rest[0])), rest[1:]))
        else:
            bare = re.sub(r"\W+", "_", name).upper()
            found = os.environ.get(bare) or self._computed(name)
            if found is None:
                found = _below(self.document, [first, *rest])
        if found is None or (isinstance(found, Scalar) and found.value is None):
            # Databricks takes the values of variables from the same names.
            self.unset[bare] = None
            text = f"${{{bare}}}"
            return Scalar(text, text, location)
        if isinstance(found, str):
            found = Scalar(found, found, location)
        return self.fill(found, (*within, name))

    def _computed(self, name: str) -> str | None:
        """A value that no file has: of the chosen target, of this machine, or of a schema or volume."""
        match name.split("."):
            case ["bundle", "target" | "environment"]:
                return self.target
            case ["bundle", "git", "branch"]:
                return _git(self.folder, "--abbrev-ref", "HEAD")
            case ["bundle", "git", "commit"]:
                return _git(self.folder, "HEAD")
            case ["workspace", "file_path" | "root_path"]:
                return str(self.folder)
            case ["workspace", "current_user", one]:
                user = getpass.getuser()
                replaced = {"short_name": "_", "domain_friendly_name": "-"}.get(one)
                return user if replaced is None else re.sub(r"[^A-Za-z0-9]", replaced, user)
            case ["resources", "schemas", key, "id"]:
                return f"${{resources.schemas.{key}.catalog_name}}.${{resources.schemas.{key}.name}}"
            case ["resources", "volumes", key, "id" | "volume_path" as one]:
                parts = [
                    f"${{resources.volumes.{key}.{part}}}" for part in ("catalog_name", "schema_name", "name")
                ]
                return ".".join(parts) if one == "id" else f"/Volumes/{'/'.join(parts)}"
            case _:
                return None


def _default(declared: Value | None) -> Value | None:
    """The value of a variable: its default, or the value that the target gives it."""
    if isinstance(declared, Mapped) and declared.items and set(declared.items) <= _DECLARING:
        return declared.items.get("default")
    return declared


def _below(value: Value | None, path: list[str]) -> Value | None:
    for part in path:
        if isinstance(value, Mapped):
            value = value.items.get(part)
        elif isinstance(value, Sequence) and part.isdigit() and int(part) < len(value.items):
            value = value.items[int(part)]
        else:
            return None
    return value


def _git(folder: Path, *what: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), "rev-parse", *what], capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
