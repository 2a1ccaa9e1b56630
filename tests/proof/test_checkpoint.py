"""A checkpoint that is lost, old, corrupt or somebody else's never loses or doubles a record."""

from __future__ import annotations

import shutil

import pytest

from proof.shop import BRONZE, SILVER, Shop

pytestmark = pytest.mark.usefixtures("spark")


def test_what_is_produced_arrives_exactly_once_through_every_layer(shop: Shop) -> None:
    shop.write(BRONZE, SILVER, limit=40)
    for count in (100, 0, 50):
        if count:
            shop.produce(count)
        shop.run_well()
        shop.check(silver=True)


def test_a_lost_checkpoint_is_refused_and_resumed_from_the_table(shop: Shop) -> None:
    shop.produce(30)
    shop.run_well()
    shutil.rmtree(shop.checkpoints())
    shop.produce(20)
    assert shop.refused().code == "CHECKPOINT_LOST"
    shop.run_well(resume="bronze")
    shop.check()
    shop.produce(10)
    shop.run_well()
    shop.check()
