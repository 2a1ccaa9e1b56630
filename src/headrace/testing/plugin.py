"""The fixture of `headrace.testing`; pytest finds it wherever Headrace is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from headrace.testing.pipeline_run import Tables

RunPipeline = Callable[..., "Tables"]


@pytest.fixture(scope="session")
def _headrace_ends() -> Iterator[ExitStack]:
    with ExitStack() as ends:
        yield ends


@pytest.fixture
def run_pipeline(_headrace_ends: ExitStack) -> Iterator[RunPipeline]:
    """Runs pipelines on rows in place of their sources, as `headrace.testing.run` does.

    All tests of a pytest session share one Spark session; an existing session is used. The tables are
    removed after the test.

    Example:
        >>> def test_revenue(run_pipeline):
        ...     tables = run_pipeline("shop", {"orders": [[{"customer": "ada", "amount": 5}]]})
        ...     assert tables["revenue"] == [{"customer": "ada", "revenue": 5}]
    """
    from headrace.testing.pipeline_run import run

    made: list[Tables] = []

    def run_one(
        pipeline: Any, rows: Mapping[str, Any], *, storage: str | Path | None = None, **more: Any
    ) -> Tables:
        tables = run(pipeline, rows, storage=storage, keep=_headrace_ends.callback, **more)
        made.append(tables)
        return tables

    yield run_one
    for tables in made:
        tables.close()
