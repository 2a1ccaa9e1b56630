"""Specs for the pipelines of an asset bundle, or for a folder of Python and SQL files."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.declare.bundle import BUNDLES, BundleSettings, load_bundle
from headrace.declare.outside_names import entry_lines, find_names
from headrace.declare.pipeline_files import find_files, relative_path
from headrace.declare.spec_values import Scalar
from headrace.errors import SourceLocation, SpecInvalidError, SpecNotFoundError
from headrace.model.project import ProjectSettings, code_language
from headrace.storage.layout import Storage, locate


@dataclass(frozen=True)
class NewSpec:
    name: str
    file: Path
    text: str
    ignored: tuple[str, ...] = ()
    unset: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    bundles: tuple[Path, ...] = ()  # in folders below that of the files


def build_specs(
    source: Path, folder: Path, target: str | None = None, storage: str | None = None
) -> tuple[NewSpec, ...]:
    """The specs for the pipelines of a bundle, or for a folder of Python and SQL files."""
    file = next((source / name for name in BUNDLES if (source / name).is_file()), source)
    if not file.exists():
        raise SpecNotFoundError(f"{file} does not exist", params={"path": str(file)})
    if file.is_file():
        bundle = load_bundle(file, target)
        specs = []
        for one in bundle.pipelines:
            own = folder / one.key if len(bundle.pipelines) > 1 else folder
            specs.append(_spec(own, bundle.settings(one, own), f"{file}, target {bundle.target}", storage))
        if specs:
            return tuple(specs)
        if not source.is_dir():
            raise SpecInvalidError(
                f"{file} declares no pipeline",
                remedies=[f"name the folder of the files:   headrace init --from {file.parent}"],
                params={"path": str(file)},
            )
    spec = _spec(folder, _settings_of_folder(source, folder), f"the folder {source}", storage)
    below = sorted(file for name in BUNDLES for file in source.rglob(name) if file.parent != source)
    return (replace(spec, bundles=tuple(below)),)


_DECLARES = re.compile(
    r"^\s*(?:import|from)\s+(?:dlt|headrace|pyspark\.pipelines|databricks\.pipelines)\b"
    r"|^\s*from\s+(?:pyspark|databricks)\s+import\s+[^\n]*\bpipelines\b"
    r"|\bCREATE\s+(?:OR\s+\w+\s+)?(?:PRIVATE\s+|TEMPORARY\s+)?"
    r"(?:STREAMING|INCREMENTAL|LIVE|MATERIALIZED|FLOW)\b"
    r"|\b(?:APPLY\s+CHANGES|AUTO\s+CDC)\s+INTO\b",
    re.IGNORECASE | re.MULTILINE,
)
"""What a file of a pipeline has, and other files of its folder have not."""


def _settings_of_folder(source: Path, folder: Path) -> BundleSettings:
    at = SourceLocation(str(source), 0)
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", source.absolute().name).strip("_.-") or "pipeline"
    found = tuple((kind, Scalar(text, text, at)) for kind, text in _libraries(source, folder))
    return BundleSettings({"name": Scalar(name, name, at)}, found)


def _libraries(source: Path, folder: Path) -> Iterator[tuple[str, str]]:
    """The folders whose files belong to pipelines, and such files beside others; else the whole folder."""
    code = [one for one in sorted(source.rglob("*")) if one.is_file() and code_language(one) is not None]
    code = [one for one in code if not any(part.startswith(".") for part in one.relative_to(source).parts)]
    declaring = [one for one in code if _DECLARES.search(one.read_text(encoding="utf-8", errors="replace"))]
    others = [one for one in code if one not in declaring]
    covered: list[Path] = []
    for file in declaring:
        if any(file.is_relative_to(one) for one in covered):
            continue
        above = [source / one for one in reversed(file.relative_to(source).parents)]
        whole = next((one for one in above if not any(other.is_relative_to(one) for other in others)), None)
        if whole is None:
            yield "file", relative_path(file, folder)
            continue
        covered.append(whole)
        yield "glob", f"{relative_path(whole, folder)}/**".removeprefix("./")
    if not declaring:
        yield "glob", f"{relative_path(source, folder)}/**".removeprefix("./")


def _spec(folder: Path, given: BundleSettings, origin: str, storage: str | None) -> NewSpec:
    settings = {key: value.text for key, value in given.values.items()}
    file = folder.absolute() / "headrace.yml"
    project = ProjectSettings(
        name=settings["name"],
        file=file,
        profile="dev",
        storage=Storage.at("./lake", folder),
        libraries=tuple(pattern.text for _, pattern in given.libraries),
        places={
            f"libraries.{n}": one.location for n, (_, one) in enumerate(given.libraries) if one.location.line
        },
    )
    texts = {key: value.text for key, value in given.configuration.items() if isinstance(value, Scalar)}
    known = {key: value for key, value in texts.items() if "${" not in value}
    names = find_names(find_files(project), file.parent, known, short=True)
    keys = {key: at for key, at in names.keys.items() if key not in texts}
    own = settings.get("catalog")
    if own is None and names.catalog is not None:
        settings["catalog"] = names.catalog
    lines = [f"# from {origin}", *(f"{key}: {value}" for key, value in settings.items())]
    lines.append(f"storage: {json.dumps(locate(storage).path) if storage else './lake'}")
    lines.append("libraries:")
    lines += [
        f"  - glob: {{include: {one.text}}}" if kind == "glob" else f"  - file: {one.text}"
        for kind, one in given.libraries
    ]
    if texts or keys:
        quoted = ((key, value.replace("'", "''")) for key, value in texts.items())
        lines += ["configuration:", *(f"  {key}: '{value}'" for key, value in quoted)]
        lines += [f"  {key}: ${{{_variable(key)}}}   # {at}" for key, at in keys.items()]
    found = [one for one in names.outside if one.kind == "path" or not _is_own(one.text, own)]
    entries = list(entry_lines(found))
    if entries:
        lines += ["", "# Write the paths that have the data.", *entries]
    if own is None and names.alike:
        catalog, schema, table = names.alike[0].split(".")
        lines += [f"# If {names.alike[0]} is the table {table} of these files, write in place of its entry:"]
        lines += [f"# catalog: {catalog}", f"# database: {schema}"]
    if names.brokers:
        lines += ["", "# Their readers and sinks use Headrace's own broker; or write the name of a profile."]
        lines += ["kafka:", "  bootstrap.servers: embedded", "  brokers:"]
        lines += [f'    "{servers}": embedded   # {at}' for servers, at in names.brokers.items()]
    text = "\n".join(lines) + "\n"
    unset = tuple(dict.fromkeys([*given.unset, *map(_variable, keys)]))
    return NewSpec(
        settings["name"], folder / "headrace.yml", text, given.ignored, unset, tuple(given.packages)
    )


def _variable(key: str) -> str:
    """The variable of the environment that gives a key of `configuration` its value."""
    return re.sub(r"\W", "_", key).upper()


def _is_own(name: str, catalog: str | None) -> bool:
    """Whether a name begins with the catalog that the bundle gives to the pipeline."""
    return catalog is not None and name.count(".") == 2 and name.partition(".")[0] == catalog


def describe_ignored(specs: tuple[NewSpec, ...]) -> Iterator[str]:
    for spec in specs:
        if spec.ignored:
            yield f"{spec.file}: no meaning here: {', '.join(spec.ignored)}"
        if spec.packages:
            yield f"{spec.file}: install beside Headrace: {', '.join(spec.packages)}"
        for bundle in spec.bundles:
            command = shlex.join(["headrace", "init", "--from", str(bundle)])
            yield f"{bundle} is a bundle; for its pipelines:   {command}"
        if spec.unset:
            names = ", ".join(f"${{{name}}}" for name in spec.unset)
            yield f"{spec.file}: set these variables in the environment or in .env: {names}"
