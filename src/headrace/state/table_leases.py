"""The leases of all flows of a table, and of a view."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from headrace.model.names import TableName
from headrace.state.lease import VIEW, Heart, Observer
from headrace.storage.guarantee import check_guarantee
from headrace.storage.layout import Storage


def has_driver(storage: Storage, name: TableName, observer: Observer) -> bool:
    """Whether a process holds the lease of a flow of a table, or of a view; also if that is not certain."""
    flows = storage.checkpoints(name).list_folders() or (VIEW,)
    return any(observer.find(storage.lease(name, flow)) is not None for flow in flows)


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
