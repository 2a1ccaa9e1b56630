"""Makes a pipeline the active one while its files or queries run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.declare.auto_loader import CLOUD_FILES, read_cloud_files
from headrace.declare.registry import ActivePipeline, activate_pipeline
from headrace.declare.sql_functions import find_calls_in
from headrace.model.queries import finding_calls
from headrace.sources.formats import reading_formats


@contextmanager
def activate(active: ActivePipeline) -> Iterator[ActivePipeline]:
    """Make a pipeline the active one of this thread, for code that uses ``spark`` or reads a source."""
    with (
        activate_pipeline(active),
        reading_formats({CLOUD_FILES: read_cloud_files}),
        finding_calls(find_calls_in),
    ):
        yield active
