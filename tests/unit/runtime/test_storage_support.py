"""A session of the user, which Headrace does not change, must fence writers of object storage itself."""

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.errors import DeltaNotConfiguredError
from headrace.runtime.session import _check_storage
from headrace.runtime.storage_support import NO_STORAGE, StorageSupport

NEEDED = StorageSupport(
    settings={"spark.delta.logStore.s3.impl": "Fenced"}, required=("spark.delta.logStore.s3.impl",)
)


def session(**settings: str) -> Any:
    return SimpleNamespace(conf=settings, sparkContext=SimpleNamespace(_jvm=None))


def test_a_session_without_the_fence_is_refused_with_the_settings_that_it_lacks() -> None:
    with pytest.raises(DeltaNotConfiguredError) as raised:
        _check_storage(session(), NEEDED)
    assert raised.value.params == {"missing": ["--conf spark.delta.logStore.s3.impl=Fenced"]}
    with pytest.raises(DeltaNotConfiguredError):
        _check_storage(session(**{"spark.delta.logStore.s3.impl": "Other"}), NEEDED)


def test_a_session_with_the_fence_and_a_local_storage_are_accepted() -> None:
    _check_storage(session(**NEEDED.settings), NEEDED)
    _check_storage(session(), NO_STORAGE)
