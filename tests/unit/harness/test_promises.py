"""The cost of a job without faults, how soon a refusal is seen, and that the server's objects are never modified in
place.
"""

from __future__ import annotations

import asyncio
import copy
from collections import Counter
from typing import Any

import pytest
from tests.harness import vtime
from tests.harness.crashpoints import fault_free
from tests.harness.faults import Fault, Injector, Write
from tests.harness.feed import Blindfold
from tests.harness.scenario import NAMESPACE, apply, foreign_pod, foreign_service, job, quota, refuse, shows
from tests.harness.scenarios.refusals import forbid
from tests.harness.world import World

from tfgpujob import names

VISIBLE_WITHIN = 1.0


def test_a_job_costs_what_the_design_allows() -> None:
    """N pod creates, 1 service, 3 status writes and 2 events."""
    writes = Counter((w.verb, w.kind) for w in fault_free("multi-worker").writes if w.kind != "Lease")
    assert writes == {
        ("create", "Pod"): 3,
        ("create", "Service"): 1,
        ("replace_status", names.KIND): 3,
        ("create", "Event"): 2,
    }


REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "InvalidSpec": (None, job("train", "Mirrored", worker=2), "Accepted"),
    "QuotaExceeded": (apply(quota(pods="1")), job("train", worker=2), "Created"),
    "Forbidden": (refuse(forbid("train-worker-1")), job("train", worker=2), "Created"),
    "NameTaken": (apply(foreign_pod("train-worker-0")), job("train", worker=2), "Accepted"),
    "NameTaken (service)": (apply(foreign_service("train")), job("train", worker=2), "Accepted"),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_a_refusal_is_a_condition_within_a_second(reason: str) -> None:
    obstacle, obj, condition = REFUSED[reason]

    async def story() -> bool:
        world = World({}, Injector(), Blindfold())
        world.spawn("operator-a")
        await asyncio.sleep(5)
        if obstacle:
            obstacle(world)
        apply(obj)(world)
        seen = shows("train", condition, "False", reason.partition(" ")[0])
        return await world.until(lambda: seen(world), within=VISIBLE_WITHIN)

    assert vtime.run(story())


class _Hangs(Injector):
    """One create never gets an answer."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def decide(self, write: Write) -> Fault | None:
        fault = super().decide(write)
        return Fault.LOST if (write.verb, write.name) == ("create", self.name) else fault


@pytest.mark.parametrize("refused", ["train-worker-1", "train-evaluator-0"])
@pytest.mark.parametrize("hanging", ["train-worker-0", "train"])
def test_a_refusal_is_a_condition_within_a_second_while_another_create_hangs(refused: str, hanging: str) -> None:
    async def story() -> tuple[bool, bool]:
        injector = _Hangs(hanging)
        world = World({}, injector, Blindfold())
        world.spawn("operator-a")
        await asyncio.sleep(5)
        refuse(forbid(refused))(world)
        apply(job("train", worker=2, evaluator=1))(world)
        seen = shows("train", "Created", "False", "Forbidden")
        in_time = await world.until(lambda: seen(world), within=VISIBLE_WITHIN)
        injector.name = ""
        world.server.rules.clear()
        runs = shows("train", "Running", "True")
        return in_time, await world.until(lambda: runs(world), within=120) and not world.promises.broken

    assert vtime.run(story()) == (True, True)


def test_the_operator_changes_no_object_that_it_was_given() -> None:
    async def story() -> tuple[list[Any], list[Any]]:
        world = World({}, Injector(), Blindfold())
        copies: list[Any] = []
        world.server.observers.append(lambda change: copies.append(copy.deepcopy(change.object)))
        world.spawn("operator-a")
        apply(job("train", worker=2))(world)
        first = world.server.history.revision
        await asyncio.sleep(60)
        seen = [change.object for change in world.server.history.all_since(first)]
        assert (world.server.get(names.KIND, NAMESPACE, "train")["status"]["phase"]) == "Succeeded"
        return seen, copies[-len(seen) :]

    seen, copies = vtime.run(story())
    assert seen == copies
