"""Pipelines for tests on real Spark and broker."""

from proof.fixtures import make_shop, shop

__all__ = ["make_shop", "shop"]
