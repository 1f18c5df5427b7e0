"""Deadlines by phase."""

from __future__ import annotations

from tfgpujob_trainer.supervise.watchdog import Watchdog


def test_start_up_has_one_deadline_for_all_of_it():
    dog = Watchdog(startup_seconds=60, step_seconds=5, now=100)
    dog.beat("starting", 0, 150)
    assert dog.overdue(160) is None
    outcome = dog.overdue(161)
    assert outcome is not None
    assert (outcome.code, outcome.cause) == (161, "StartupDeadline")


def test_each_step_has_its_own_deadline():
    dog = Watchdog(startup_seconds=60, step_seconds=5, now=0)
    dog.beat("training", 1, 50)
    dog.beat("training", 2, 54)
    assert dog.overdue(60) is None
    outcome = dog.overdue(61)
    assert outcome is not None
    assert (outcome.code, outcome.cause) == (161, "ProgressDeadline")
    assert outcome.message == "no progress for 7 s while training after step 2"


def test_who_waits_for_nobody_has_no_time_beyond_it():
    dog = Watchdog(startup_seconds=60, step_seconds=5, now=0, has_peers=False)
    dog.beat("training", 2, 54)
    assert dog.overdue(59) is None
    assert dog.overdue(59.1) is not None


def test_who_serves_may_take_any_time_as_long_as_it_gives_signs_of_life():
    dog = Watchdog(startup_seconds=60, step_seconds=8, now=0)
    dog.beat("serving", 0, 1)
    for second in range(6, 1000, 5):
        dog.alive(second)
        assert dog.overdue(second + 6) is None
    outcome = dog.overdue(1003)
    assert outcome is not None
    assert (outcome.code, outcome.message) == (161, "no sign of life for 7 s while serving: the process is frozen")
    dog.beat("waiting", 0, 1000)  # for the end of a step, after a request to stop
    assert dog.overdue(1e9) is None


def test_a_sign_of_life_is_no_step():
    dog = Watchdog(startup_seconds=60, step_seconds=5, now=0)
    dog.beat("training", 1, 50)
    dog.alive(56)
    assert dog.overdue(57) is not None


def test_an_evaluator_waits_for_as_long_as_training_takes():
    dog = Watchdog(startup_seconds=60, step_seconds=5, now=0)
    dog.beat("waiting", 1, 1)
    assert dog.overdue(1e9) is None


def test_filling_a_cache_may_take_long_as_long_as_it_goes_on_and_then_start_up_has_all_its_time():
    dog = Watchdog(startup_seconds=60, step_seconds=5, now=0)
    for second in range(10, 1000, 4):
        dog.beat("caching", 0, second)
        assert dog.overdue(second + 5) is None
    assert dog.overdue(1005) is not None
    dog.beat("starting", 0, 999)
    assert dog.overdue(998 + 60) is None
    assert dog.overdue(998 + 61) is not None
