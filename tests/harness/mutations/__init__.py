"""Planted bugs, each of which the proof must catch: `python -m tests.harness.mutations` prints who caught what.

A proof that never fails proves nothing. Each bug is planted in the real code; then the points of some scenarios
are played until the promise that the bug names is broken.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.harness.mutations import account, bounds, needs, people, pods, resizes, room, unseen, writes
from tests.harness.mutations.mutation import Mutation, caught

MUTATIONS: Sequence[Mutation] = (
    *writes.MUTATIONS,
    *pods.MUTATIONS,
    *needs.MUTATIONS,
    *account.MUTATIONS,
    *resizes.MUTATIONS,
    *room.MUTATIONS,
    *people.MUTATIONS,
    *bounds.MUTATIONS,
    *unseen.MUTATIONS,
)

__all__ = ["MUTATIONS", "Mutation", "caught"]
