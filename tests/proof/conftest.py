"""Pipelines for tests of properties."""

from proof.fixtures import make_shop, shop

__all__ = ["make_shop", "shop"]
