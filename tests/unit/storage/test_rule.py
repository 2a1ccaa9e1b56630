"""What lies in a storage is reached through `headrace.storage`, and not through paths of this machine."""

from __future__ import annotations

import ast
from pathlib import Path

import headrace

ROOT = Path(headrace.__file__).parent
ROOMS = ("observe", "plan", "project", "run", "sinks", "sources", "state")
FILE_MODULES = {"pathlib", "shutil", "glob", "tempfile", "fcntl"}

THIS_MACHINE = {
    "observe/event_table.py": "a copy of files of a storage",
    "observe/log.py": "logs",
    "plan/catalog.py": "the scratch catalog",
    "plan/evaluate.py": "the pipeline's files",
    "plan/logical.py": "the pipeline's files",
    "plan/inputs.py": "files that are read",
    "plan/intercept.py": "the pipeline's files",
    "plan/build.py": "the pipeline's files",
    "plan/snapshots.py": "folders of snapshots that are read",
    "plan/validate.py": "the pipeline's files",
    "project/deploying.py": "files that are written, and the pipeline's files",
    "project/engine.py": "logs",
    "project/pipeline.py": "the pipeline's files",
    "project/last_results.py": "results in the cache of this machine",
    "project/ingesting.py": "the pipeline's files",
    "project/inferring.py": "the pipeline's files",
    "project/preview.py": "logs",
    "project/producing.py": "files that are produced",
    "project/recomputing.py": "logs",
    "project/working_copy.py": "a copy of files of a storage",
    "sources/files/reader.py": "files that are read",
    "project/quarantine.py": "files that are exported",
    "project/reading.py": "the pipeline's files",
    "project/query_code.py": "the pipeline's files",
    "run/context.py": "logs",
    "run/failpoints.py": "markers of tests",
    "run/failures.py": "logs",
    "run/schedule.py": "logs",
    "sinks/outside/kafka/writer.py": "the messages of a batch",
    "sources/delta/source.py": "the pipeline's files",
    "sources/files/bad_files.py": "files that are read",
    "sources/files/source.py": "files that are read",
    "sources/kafka/source.py": "the pipeline's files",
    "sources/kinesis/data_source.py": "rows that a plan has read",
    "sources/kinesis/source.py": "the pipeline's files",
    "sources/other/source.py": "the pipeline's files",
    "sources/kafka/producer.py": "files that are produced",
    "sources/schemas.py": "the pipeline's files",
    "sources/source.py": "the pipeline's files",
}
"""Modules that work with files of this machine that are not in a storage."""


def imported(file: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names}


def test_no_other_module_works_with_paths_of_this_machine() -> None:
    own = ("project/demo/", "project/template/")
    found = {
        name
        for room in ROOMS
        for file in (ROOT / room).rglob("*.py")
        if not (name := str(file.relative_to(ROOT))).startswith(own) and imported(file) & FILE_MODULES
    }
    assert found == {*THIS_MACHINE}
