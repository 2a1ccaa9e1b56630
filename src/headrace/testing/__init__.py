"""Pipelines on rows in place of their sources: real queries, real tables, no broker.

Example:
    >>> from headrace.testing import run
    >>> tables = run("shop", {"orders": [[{"id": 1, "amount": 5.0}]]})  # doctest: +SKIP
    >>> tables["revenue"]  # doctest: +SKIP
"""

from __future__ import annotations

from headrace.testing.pipeline_run import Tables, run
from headrace.testing.rows import Batches, Record

__all__ = ["Batches", "Record", "Tables", "run"]
