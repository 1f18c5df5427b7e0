"""A job that a test has put into the store."""

from __future__ import annotations

from tfgpujob.core.observed.snapshot import Snapshot
from tfgpujob.shell.store import Key, Store


def snapshot_of(store: Store, key: Key) -> Snapshot:
    found = store.snapshot(key)
    assert found is not None, f"{key.namespace}/{key.name} is not in the store"
    return found
