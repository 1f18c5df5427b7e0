"""What holds of the Lease."""

from __future__ import annotations

from collections.abc import Iterator

from tests.harness.history import Change
from tests.harness.promises.truth import Truth


def one_leader(change: Change, truth: Truth) -> Iterator[str]:
    """The Lease is never taken from a holder that may still believe in it."""
    assert change.old is not None
    before, now = change.old["spec"], change.object["spec"]
    renewed, truth.renewed_at = truth.renewed_at, truth.now
    if before.get("holderIdentity") in ("", now.get("holderIdentity")) or not now.get("holderIdentity"):
        return
    if truth.now < renewed + before["leaseDurationSeconds"]:
        yield f"{now['holderIdentity']} took it from {before['holderIdentity']}"
