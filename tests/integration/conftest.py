"""Pipelines for tests on real Spark and broker."""

from proof.fixtures import make_shop, shop, shop_numbers

__all__ = ["make_shop", "shop", "shop_numbers"]
