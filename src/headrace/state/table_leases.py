"""The leases of all flows of tables, held together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from headrace.model.names import TableName
from headrace.state.lease import VIEW, Heart
from headrace.storage.guarantee import check_guarantee
from headrace.storage.layout import Storage


@contextmanager
def held_leases(storage: Storage, names: Iterable[TableName]) -> Iterator[None]:
    """Hold the leases of all flows of tables, and of views, for the block.

    Raises:
        StorageUnsafeError: The storage does not keep two writers apart.
    """
    check_guarantee(storage.root)
    with Heart() as heart:
        for name in names:
            # A view has no checkpoint.
            for flow in storage.checkpoints(name).list_folders() or (VIEW,):
                heart.acquire(storage.lease(name, flow), str(name) if flow == VIEW else flow)
        yield
