"""Specs for the pipelines of an asset bundle, or for a folder of Python and SQL files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.declare.bundle import BUNDLES, BundleSettings, load_bundle
from headrace.declare.outside_names import entry_lines, find_outside
from headrace.declare.pipeline_files import find_files, relative_path
from headrace.declare.spec_values import Scalar
from headrace.errors import SourceLocation, SpecInvalidError, SpecNotFoundError
from headrace.model.project import ProjectSettings
from headrace.storage.layout import Storage


@dataclass(frozen=True)
class NewSpec:
    name: str
    file: Path
    text: str
    ignored: tuple[str, ...] = ()
    unset: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()


def build_specs(source: Path, folder: Path, target: str | None = None) -> tuple[NewSpec, ...]:
    """The specs for the pipelines of a bundle, or for a folder of Python and SQL files."""
    file = next((source / name for name in BUNDLES if (source / name).is_file()), source)
    if not file.exists():
        raise SpecNotFoundError(f"{file} does not exist", params={"path": str(file)})
    if file.is_file():
        bundle = load_bundle(file, target)
        specs = []
        for one in bundle.pipelines:
            own = folder / one.key if len(bundle.pipelines) > 1 else folder
            specs.append(_spec(own, bundle.settings(one, own), f"{file}, target {bundle.target}"))
        if specs:
            return tuple(specs)
        if not source.is_dir():
            raise SpecInvalidError(
                f"{file} declares no pipeline",
                remedies=[f"name the folder of the files:   headrace init --from {file.parent}"],
                params={"path": str(file)},
            )
    return (_spec(folder, _settings_of_folder(source, folder), f"the folder {source}"),)


def _settings_of_folder(source: Path, folder: Path) -> BundleSettings:
    at = SourceLocation(str(source), 0)
    pattern = f"{relative_path(source, folder)}/**".removeprefix("./")
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", source.absolute().name).strip("_.-") or "pipeline"
    return BundleSettings({"name": Scalar(name, name, at)}, (("glob", Scalar(pattern, pattern, at)),))


def _spec(folder: Path, given: BundleSettings, origin: str) -> NewSpec:
    settings = {key: value.text for key, value in given.values.items()}
    file = folder.absolute() / "headrace.yml"
    project = ProjectSettings(
        name=settings["name"],
        file=file,
        profile="dev",
        storage=Storage.at("./lake", folder),
        libraries=tuple(pattern.text for _, pattern in given.libraries),
    )
    lines = [f"# from {origin}", *(f"{key}: {value}" for key, value in settings.items()), "storage: ./lake"]
    lines.append("libraries:")
    lines += [
        f"  - glob: {{include: {one.text}}}" if kind == "glob" else f"  - file: {one.text}"
        for kind, one in given.libraries
    ]
    texts = {key: value.text for key, value in given.configuration.items() if isinstance(value, Scalar)}
    if texts:
        quoted = ((key, value.replace("'", "''")) for key, value in texts.items())
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
    return NewSpec(
        settings["name"], folder / "headrace.yml", text, given.ignored, given.unset, tuple(given.packages)
    )


def describe_ignored(specs: tuple[NewSpec, ...]) -> Iterator[str]:
    for spec in specs:
        if spec.ignored:
            yield f"{spec.file}: no meaning here: {', '.join(spec.ignored)}"
        if spec.packages:
            yield f"{spec.file}: install beside Headrace: {', '.join(spec.packages)}"
        if spec.unset:
            names = ", ".join(f"${{{name}}}" for name in spec.unset)
            yield f"{spec.file}: set these variables in the environment or in .env: {names}"
