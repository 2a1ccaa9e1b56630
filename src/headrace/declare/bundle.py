"""Specs for pipelines of Databricks: from an asset bundle (`databricks.yml`), or from a folder of files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.declare.outside_names import entry_lines, find_outside
from headrace.declare.pipeline_files import find_files
from headrace.declare.spec_values import Mapped, Scalar, Sequence, Value, build_values
from headrace.errors import SourceLocation, SpecAmbiguousError, SpecInvalidError, SpecNotFoundError
from headrace.model.project import ProjectSettings
from headrace.model.texts import option_text
from headrace.storage.layout import Storage

BUNDLES = ("databricks.yml", "databricks.yaml")
_VARIABLE = re.compile(r"\$\{([\w.-]+)\}")
_NO_VARIABLE = re.compile(r"\$\{(?!\w+\})")
_SUFFIXES = ("", ".py", ".sql", ".ipynb")
_KEPT = frozenset(
    {"name", "catalog", "schema", "target", "libraries", "configuration", "parameters", "root_path"}
)
"""The keys of a pipeline that a spec takes over."""


@dataclass(frozen=True)
class BundlePipeline:
    key: str
    values: Mapping[str, Any]
    folder: Path


@dataclass(frozen=True)
class NewSpec:
    name: str
    file: Path
    text: str
    ignored: tuple[str, ...] = ()
    unset: tuple[str, ...] = ()


@dataclass
class _Variables:
    values: dict[str, str]
    unset: dict[str, None] = field(default_factory=dict)

    def fill(self, value: Any) -> Any:
        """The value with all variables; one without a value becomes a variable of the environment."""
        match value:
            case str():
                # The default of a variable can name another one.
                return _VARIABLE.sub(self._one, _VARIABLE.sub(self._one, value))
            case Mapping():
                return {key: self.fill(item) for key, item in value.items()}
            case list():
                return [self.fill(item) for item in value]
            case _:
                return value

    def _one(self, found: re.Match[str]) -> str:
        name = found[1]
        if name in self.values:
            return self.values[name]
        if "." not in name:
            return found[0]
        # Databricks takes the values of variables from the same names.
        is_variable = name.startswith("var.")
        bare = f"BUNDLE_VAR_{name[4:]}" if is_variable else re.sub(r"\W", "_", name).upper()
        self.unset[bare] = None
        return f"${{{bare}}}"


def build_specs(source: Path, folder: Path, target: str | None = None) -> tuple[NewSpec, ...]:
    """The specs for the pipelines of a bundle, or for a folder of Python and SQL files."""
    bundle = next((source / name for name in BUNDLES if (source / name).is_file()), source)
    if bundle.is_dir():
        pattern = f"{_relative(bundle, folder)}/**".removeprefix("./")
        name = re.sub(r"[^A-Za-z0-9_.-]+", "_", bundle.absolute().name).strip("_.-") or "pipeline"
        return (_spec(folder, _Settings({"name": name}, (("glob", pattern),)), f"the folder {bundle}"),)
    if not bundle.is_file():
        raise SpecNotFoundError(f"{bundle} does not exist", params={"path": str(bundle)})
    pipelines, variables, chosen = _load(bundle, target)
    if not pipelines:
        raise SpecInvalidError(f"{bundle} declares no pipeline", params={"path": str(bundle)})
    specs = []
    for one in pipelines:
        own = folder / one.key if len(pipelines) > 1 else folder
        specs.append(_spec(own, _settings(one, own, variables), f"{bundle}, target {chosen}"))
    return tuple(specs)


@dataclass(frozen=True)
class _Settings:
    values: Mapping[str, str]  # the keys and values of a spec, without `libraries` and `configuration`
    # The patterns of its files, with `glob` or `file`, relative to a folder.
    libraries: tuple[tuple[str, str], ...]
    configuration: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    unset: tuple[str, ...] = ()


def _settings(pipeline: BundlePipeline, folder: Path, variables: _Variables) -> _Settings:
    variables.unset.clear()
    values = variables.fill(pipeline.values)
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", str(values.get("name", pipeline.key))).strip("_.-")
    settings = {"name": name or pipeline.key}
    for ours, theirs in (("catalog", ("catalog",)), ("database", ("schema", "target"))):
        found = next((str(values[key]) for key in theirs if values.get(key)), None)
        if found:
            settings[ours] = found
    root = pipeline.folder / str(values["root_path"]) if values.get("root_path") else None
    if root is not None:
        settings["root_path"] = _relative(root, folder)
    libraries = []
    for library in values.get("libraries") or ():
        for kind, given in library.items():
            path = given.get("include") or given.get("path") if isinstance(given, Mapping) else given
            if kind in ("notebook", "file", "glob") and path:
                pattern = _pattern(str(path), pipeline.folder, folder, is_glob=kind == "glob")
                libraries.append(("glob" if kind == "glob" else "file", pattern))
    if not libraries:
        libraries = [("glob", f"{_relative(root or pipeline.folder, folder)}/**".removeprefix("./"))]
    given = {**(values.get("configuration") or {}), **(values.get("parameters") or {})}
    return _Settings(
        values=settings,
        libraries=tuple(libraries),
        # What is no variable of a bundle is text there.
        configuration={str(key): _NO_VARIABLE.sub("$${", option_text(value)) for key, value in given.items()},
        ignored=tuple(sorted(set(values) - _KEPT)),
        unset=tuple(variables.unset),
    )


def _spec(folder: Path, given: _Settings, origin: str) -> NewSpec:
    settings = given.values
    file = folder.absolute() / "headrace.yml"
    project = ProjectSettings(
        name=settings["name"],
        file=file,
        profile="dev",
        storage=Storage.at("./lake", folder),
        libraries=tuple(pattern for _, pattern in given.libraries),
    )
    lines = [f"# from {origin}", *(f"{key}: {value}" for key, value in settings.items()), "storage: ./lake"]
    lines.append("libraries:")
    lines += [
        f"  - glob: {{include: {one}}}" if kind == "glob" else f"  - file: {one}"
        for kind, one in given.libraries
    ]
    if given.configuration:
        quoted = ((key, value.replace("'", "''")) for key, value in given.configuration.items())
        lines += ["configuration:", *(f"  {key}: '{value}'" for key, value in quoted)]
    found = [
        one
        for one in find_outside(find_files(project), file.parent)
        if one.kind == "path" or one.text.partition(".")[0] != settings.get("catalog")
    ]
    entries = list(entry_lines(found))
    if entries:
        lines += ["", "# Write the paths that have the data.", *entries]
    text = "\n".join(lines) + "\n"
    return NewSpec(settings["name"], folder / "headrace.yml", text, given.ignored, given.unset)


def _pattern(path: str, start: Path, folder: Path, *, is_glob: bool) -> str:
    named = start / path
    if is_glob:
        return _relative(named, folder)
    found = next((one for suffix in _SUFFIXES if (one := Path(f"{named}{suffix}")).is_file()), named)
    return _relative(found, folder)


def _relative(path: Path, folder: Path) -> str:
    return os.path.relpath(path.absolute(), folder.absolute())


def find_bundle(file: Path) -> tuple[Path, str | None] | None:
    """The bundle that declares or includes a file, and the file's pipeline; ``None`` for other files."""
    if file.name in BUNDLES:
        return file, None
    folders = (folder / name for folder in file.absolute().parents for name in BUNDLES)
    bundle = next((one for one in folders if one.is_file()), None)
    if bundle is None or file.suffix not in (".yml", ".yaml"):
        return None
    declared = (_document(file).get("resources") or {}).get("pipelines") or {}
    return (bundle, next(iter(declared)) if len(declared) == 1 else None) if declared else None


def target_names(bundle: Path) -> tuple[str, ...]:
    return tuple(_document(bundle).get("targets") or {})


def read_bundle(
    bundle: Path, folder: Path, target: str | None, pipeline: str | None
) -> tuple[Mapped, list[str]]:
    """A pipeline of a bundle as the document of a spec, and its settings that have no meaning here."""
    pipelines, variables, _ = _load(bundle, target)
    keys = [one.key for one in pipelines]
    if not pipelines or (pipeline is not None and pipeline not in keys):
        problem = f"declares no pipeline `{pipeline}`" if pipeline and keys else "declares no pipeline"
        raise SpecInvalidError(
            f"{bundle} {problem}",
            facts=[f"its pipelines: {', '.join(keys)}"] if keys else [],
            params={"path": str(bundle), "pipeline": pipeline, "known": keys},
        )
    if pipeline is None and len(keys) > 1:
        raise SpecAmbiguousError(
            f"{bundle} has {len(keys)} pipelines: {', '.join(keys)}",
            remedies=[
                f"name one:   headrace run --spec {bundle.name} --set pipeline={keys[0]}",
                "or name the file that declares it alone:   headrace run --spec resources/NAME.pipeline.yml",
            ],
            params={"path": str(bundle), "pipelines": keys},
        )
    chosen = next(one for one in pipelines if pipeline in (None, one.key))
    found = _settings(chosen, folder, variables)
    at = SourceLocation(str(bundle), 1)

    def mapped(values: Mapping[str, Value]) -> Mapped:
        return Mapped(values, dict.fromkeys(values, at), at)

    def texts(values: Mapping[str, str]) -> dict[str, Value]:
        return {key: Scalar(value, value, at) for key, value in values.items()}

    libraries: list[Value] = []
    for kind, pattern in found.libraries:
        path = Scalar(pattern, pattern, at)
        libraries.append(mapped({kind: mapped({"include": path}) if kind == "glob" else path}))
    document: dict[str, Value] = {**texts(found.values), "libraries": Sequence(tuple(libraries), at)}
    if found.configuration:
        document["configuration"] = mapped(texts(found.configuration))
    return mapped(document), list(found.ignored)


def _load(bundle: Path, target: str | None) -> tuple[tuple[BundlePipeline, ...], _Variables, str]:
    main = _document(bundle)
    documents = [(bundle, main)]
    for pattern in main.get("include") or ():
        files = sorted(bundle.parent.glob(str(pattern)))
        documents += [(file, _document(file)) for file in files if file != bundle]
    targets = main.get("targets") or {}
    marked = next((name for name, one in targets.items() if one and one.get("default")), None)
    chosen = target or marked or next(iter(targets), "dev")
    if target is not None and target not in targets:
        known = ", ".join(targets) or "none"
        raise SpecInvalidError(
            f"{bundle} has no target `{target}`",
            facts=[f"its targets: {known}"],
            params={"target": target, "known": list(targets)},
        )
    overrides = targets.get(chosen) or {}
    values = {"bundle.target": chosen, "bundle.name": str((main.get("bundle") or {}).get("name", ""))}
    for _, document in (*documents, (bundle, overrides)):
        for name, given in (document.get("variables") or {}).items():
            value = given.get("default") if isinstance(given, Mapping) else given
            value = os.environ.get(f"BUNDLE_VAR_{name}", value)
            if value is not None:
                values[f"var.{name}"] = option_text(value)
    found: dict[str, BundlePipeline] = {}
    for file, document in (*documents, (bundle, overrides)):
        for key, given in ((document.get("resources") or {}).get("pipelines") or {}).items():
            before = found.get(key)
            folder = before.folder if before else file.parent
            found[key] = BundlePipeline(key, {**(before.values if before else {}), **(given or {})}, folder)
    for name in ("workspace.file_path", "workspace.root_path"):
        values[name] = str(bundle.parent.absolute())
    return tuple(found.values()), _Variables(values), chosen


def _document(file: Path) -> dict[str, Any]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecInvalidError(f"{file} cannot be read", params={"path": str(file)}) from error
    return dict(_plain(build_values(text, str(file))))


def _plain(value: Value) -> Any:
    match value:
        case Mapped():
            return {key: _plain(item) for key, item in value.items.items()}
        case Scalar():
            return value.value
        case _:
            return [_plain(item) for item in value.items]


def describe_ignored(specs: tuple[NewSpec, ...]) -> Iterator[str]:
    for spec in specs:
        if spec.ignored:
            yield f"{spec.file}: no meaning here: {', '.join(spec.ignored)}"
        if spec.unset:
            names = ", ".join(f"${{{name}}}" for name in spec.unset)
            yield f"{spec.file}: set these variables in the environment or in .env: {names}"
