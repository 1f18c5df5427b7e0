"""A job that costs too much is quarantined with a message, its pods continue, and it is rarely tried again."""

from __future__ import annotations

from datetime import timedelta

from tests.unit.core import make
from tests.unit.core.simulator import World

from tfgpujob.core.policies.quarantine import FIRST, LONGEST, SLOW, SLOW_SECONDS, SetAside, restored, set_aside

MINUTE = timedelta(minutes=1)


def test_the_pauses_double_up_to_an_hour() -> None:
    found = set_aside(None, 2 * SLOW_SECONDS, 1, make.START)
    pauses = []
    for _ in range(9):
        assert found is not None
        due = found.due(1)
        pauses.append((due - found.tried) / MINUTE)
        found = set_aside(found, 2 * SLOW_SECONDS, 1, due)
    assert pauses == [1, 1, 2, 4, 8, 16, 32, 60, 60]
    assert LONGEST == 60 * MINUTE


def test_an_edit_is_tried_within_a_minute_and_what_is_small_is_not_set_aside() -> None:
    long = SetAside(make.START - timedelta(days=1), make.START, generation=1)
    assert (long.due(1) - make.START, long.due(2) - make.START) == (LONGEST, FIRST)
    assert set_aside(long, SLOW_SECONDS, 2, make.START) is None


def running() -> World:
    return World.running(make.job())


def test_its_pods_go_on_and_it_is_said_once() -> None:
    world = running()
    world.quarantined = SLOW
    world.settle()
    assert (world.condition("Quarantined"), world.message("Quarantined")) == ("True/BudgetExceeded", SLOW)
    assert (world.phase, world.condition("Accepted"), len(world.pods)) == ("Running", "True/Valid", 2)
    assert [event.reason for event in world.events].count("BudgetExceeded") == 1
    writes = len(world.writes)
    world.advance(hours=5)
    assert len(world.writes) == writes
    world.quarantined = ""
    world.settle()
    assert world.condition("Quarantined") == "False/WithinBudget"


def test_it_can_be_suspended_and_gets_no_pods_meanwhile() -> None:
    world = running()
    world.quarantined = SLOW
    world.suspend()
    assert (world.phase, world.pods) == ("Suspended", [])
    world.suspend(False)
    assert world.pods == []
    world.quarantined = ""
    world.settle()
    assert len(world.pods) == 2


def test_a_new_one_gets_nothing() -> None:
    world = World(make.job())
    world.quarantined = SLOW
    world.settle()
    assert (world.phase, world.condition("Quarantined"), world.tries) == ("Pending", "True/BudgetExceeded", 0)


def test_a_restarted_operator_goes_on_from_the_status() -> None:
    world = World(make.job())
    assert restored(world.job or {}, world.now) is None
    world.quarantined = SLOW
    world.settle()
    world.advance(minutes=30)
    found = restored(world.job or {}, world.now)
    assert found is not None
    assert found.due(1) - world.now == timedelta(minutes=30)
    world.quarantined = "spec: all jobs have more than 96 MiB of specs together"
    world.settle()
    world.advance(minutes=1)
    assert restored(world.job or {}, world.now) is None, "that the store finds by itself"
