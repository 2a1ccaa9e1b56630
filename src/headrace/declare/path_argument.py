"""Checks the argument ``path`` of tables: all tables are stored in the pipeline's storage."""

from __future__ import annotations

from typing import Any

from headrace.declare.arguments import arguments_of
from headrace.declare.registry import current_pipeline
from headrace.errors import FeatureUnsupportedError
from headrace.model.notes import Note
from headrace.storage.locate import locate_supported
from headrace.storage.table_log import is_table


def check_path(call: str, path: Any) -> None:
    """Compare the ``path`` of the table that was declared last with its folder in the storage.

    An entry of `paths` in the spec can map the path to that folder. Otherwise the plan gets a warning,
    because programs that read the path do not find the rows.

    Raises:
        FeatureUnsupportedError: A table exists at the path; programs that read it would find no new rows.
    """
    arguments = arguments_of(call)
    text = arguments.text("path", path)
    active = current_pipeline()
    if active is None or active.registry is None:
        return
    settings, name = active.settings, active.registry.newest.name
    folder = locate_supported(settings.paths.map(text), settings.root)
    own = settings.storage.table(name)
    if folder is not None and folder.below(settings.storage.tables) == (name.schema, name.name):
        return
    shown = "/".join(own.below(settings.storage.root) or ())
    entry = f'paths: {{"{text}": {own}}}'
    if folder is not None and is_table(folder):
        raise FeatureUnsupportedError(
            f"{call}: `{name.short}` cannot be stored in {text}, which already has a table",
            location=arguments.location,
            facts=[
                f"tables are stored in the pipeline's storage; this table in {shown}",
                "programs that read the other table would find no new rows",
            ],
            remedies=[
                f"let these programs read {own}, and remove `path`",
                f"or map the path in the spec:   {entry}",
            ],
            params={"argument": "path", "path": text},
        )
    text = f"`{name.short}` is stored in {shown} of the storage, not in {text}"
    remedy = f"let other programs read {own}; for queries of this pipeline, add to the spec:   {entry}"
    active.registry.add_note(Note(level="warning", text=text, location=arguments.location, remedy=remedy))
