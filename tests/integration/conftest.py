"""Pipelines for tests on real Spark and broker."""

from headrace.testing.plugin import _headrace_ends, run_pipeline
from proof.fixtures import make_shop, shop

__all__ = ["_headrace_ends", "make_shop", "run_pipeline", "shop"]
