"""Pipelines for tests of properties."""

from proof.fixtures import make_shop, shop, shop_numbers

__all__ = ["make_shop", "shop", "shop_numbers"]
