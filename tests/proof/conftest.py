"""Pipelines for tests of properties."""

from proof.fixtures import lake_kind, make_lake, make_shop, shop

__all__ = ["lake_kind", "make_lake", "make_shop", "shop"]
