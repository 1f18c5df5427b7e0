"""Stories that once broke a promise, by what they taught. Each is played in every test run."""

from __future__ import annotations

from typing import Any

KEPT: dict[str, tuple[tuple[Any, ...], ...]] = {
    "a clock that went back leaves the expiry to come": (
        ("create", "a", "expiring"),
        ("wait", 12.0),
        ("quota", 0),
        ("wait", 12.0),
        ("heal",),
        ("wait", 12.0),
        ("clock", -300.0),
    ),
    "a finished job that was edited into nonsense has no expiry that anybody could read": (
        ("create", "a", "expiring"),
        ("wait", 12.0),
        ("pod", 5, "exit 0"),
        ("wait", 0.6),
        ("edit", "a", "nonsense"),
    ),
    "a worker of a parameter server that ends early is not waited for when the chief starts again": (
        ("create", "b", "parameter-server"),
        ("wait", 3.0),
        ("pod", 3, "exit 160"),
        ("pod", 2, "exit 0"),
    ),
    "an operator that stands still while its job is edited catches up": (
        ("create", "a", "sleeping"),
        ("wait", 40.0),
        ("write", "paused", 0),
        ("edit", "a", "cleanup"),
        ("wait", 3.0),
    ),
    "a refused evaluator does not stand for a worker whose create got no answer": (
        ("quota", 0),
        ("write", "409", 1),
        ("create", "a", "mirrored"),
        ("wait", 3.0),
    ),
    "counts that wait for something worth a write do not wait for a clock that has gone back": (
        ("create", "a", "parameter-server"),
        ("wait", 12.0),
        ("edit", "a", "three workers"),
        ("wait", 150.0),
        ("pod", 4, "exit 1"),
        ("wait", 3.0),
        ("clock", -300.0),
    ),
    "an evaluator that was refused is tried again, also by a clock that has gone back": (
        ("quota", 1),
        ("create", "b", "mirrored"),
        ("wait", 150.0),
        ("clock", -300.0),
    ),
    "a delete that arrives late takes a pod that was orphaned meanwhile": (
        ("create", "a", "multi-worker"),
        ("wait", 40.0),
        ("pod", 6, "vanish"),
        ("wait", 0.01),
        ("write", "late", 0),
        ("delete", "a", "Orphan"),
        ("wait", 40.0),
    ),
    "a job whose spec is not taken is not at rest while its pods are on their way": (
        ("image", True),
        ("create", "b", "predicting"),
        ("wait", 9.0),
        ("edit", "b", "other image"),
        ("wait", 153.0),
    ),
}
