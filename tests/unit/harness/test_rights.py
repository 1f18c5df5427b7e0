"""What the operator asks for in all scenarios is what the chart grants, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest
from tests.harness.driver import play
from tests.harness.memory_cluster import MemoryCluster
from tests.harness.scenarios import SCENARIOS
from tests.unit.chart.rendered import render, rights

from tfgpujob import names
from tfgpujob.core.observed.snapshot import Kind
from tfgpujob.kube import paths

pytestmark = pytest.mark.slow

FEATURES = {
    "volumeClaims": {"enabled": True},
    "deviceClaims": {"enabled": True},
    "kueue": {"enabled": True},
    "networkPolicy": {"jobNamespaces": ["*"]},
    "gang": {"backends": ["Volcano"]},
}
"""What scenarios turn on."""
VERBS = {"get": "get", "list": "list", "create": "create", "delete": "delete", "replace_status": "update"}
LEASES = {f"{verb}_lease": ("coordination.k8s.io", "leases", asked) for verb, asked in
          (("get", "get"), ("create", "create"), ("replace", "update"))}  # fmt: skip
EVENTS = {"create_event": ("", "events", "create")}
NO_SCENARIO = {
    (names.GROUP, f"{names.PLURAL}/finalizers", "update"): "admission asks it of who sets blockOwnerDeletion",
    ("scheduling.volcano.sh", "podgroups", "get"): "asked for when a create finds the name taken, as after a crash",
}
Right = tuple[str, str, str]


def test_the_chart_grants_what_is_asked_for_in_a_scenario_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: set[Right] = set()

    def heard(method: str, right: Callable[..., Right]) -> None:
        real = getattr(MemoryCluster, method)

        @wraps(real)
        def spy(self: MemoryCluster, *given: Any, **how: Any) -> Any:
            asked.add(right(*given, **how))
            return real(self, *given, **how)

        monkeypatch.setattr(MemoryCluster, method, spy)

    for method, verb in VERBS.items():
        heard(method, lambda *given, verb=verb, **how: _of_kind(verb, [*given, *how.values()]))
    for method, right in (LEASES | EVENTS).items():
        heard(method, lambda *_, right=right, **__: right)
    for scenario in SCENARIOS.values():
        play(scenario)

    roles = [o for o in render(FEATURES) if o["kind"] in {"ClusterRole", "Role"} and _of_operator(o)]
    granted = {(group, what, verb) for role in roles for group, what, verb, _ in rights(role["rules"])}
    watched = {(group, what, "list") for group, what, verb in granted if verb == "watch"}
    assert watched == {right for right in granted if right[2] == "list"}, "what is watched is listed first"
    assert {right for right in granted if right[2] != "watch"} - asked == set(NO_SCENARIO)
    assert asked - granted == set()


def _of_kind(verb: str, given: list[Any]) -> Right:
    kind = next((word for word in given if isinstance(word, Kind)), Kind.JOB)
    prefix, plural = paths.api(kind)
    group = prefix.split("/")[2] if prefix.startswith("/apis/") else ""
    return group, f"{plural}/status" if verb == "update" else plural, verb


def _of_operator(role: dict[str, Any]) -> bool:
    """Not one that is aggregated to those of people."""
    return not any("aggregate-to" in label for label in role["metadata"].get("labels", {}))
