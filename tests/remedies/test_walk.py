"""Every printed remedy, carried out as printed, leads back to a healthy pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import SparkSession

from remedies.every import SITUATIONS
from remedies.folders import BROKERS, KINDS, Folder
from remedies.walk import Situation, Walk

pytestmark = pytest.mark.thorough

Healthy = Callable[[str], Folder]


@pytest.fixture(scope="module")
def folders() -> Iterator[dict[str, Folder]]:
    """The healthy pipelines that several situations share."""
    made: dict[str, Folder] = {}
    yield made


@pytest.fixture
def healthy(
    folders: dict[str, Folder],
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Healthy:
    def find(kind: str) -> Folder:
        if kind not in folders:
            folders.clear()
            broker = request.getfixturevalue(BROKERS[kind]) if kind in BROKERS else None
            folder = KINDS[kind](tmp_path_factory.mktemp(kind), broker)
            Walk("", folder).is_healthy()
            folders[kind] = folder
        return folders[kind]

    return find


@pytest.mark.parametrize("one", SITUATIONS, ids=lambda one: one.id)
def test_the_printed_remedy_leads_back_to_a_healthy_pipeline(
    one: Situation, folders: dict[str, Folder], healthy: Healthy, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = healthy(one.kind)
    # A walk that fails leaves a pipeline that is not healthy.
    del folders[one.kind]
    one.take(folder)
    if not one.spoils:
        folders[one.kind] = folder
