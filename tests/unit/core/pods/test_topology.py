"""topologyKey: the pods of an attempt near each other, beside what the template asks for."""

from __future__ import annotations

from typing import Any

from tests.unit.core import make

from tfgpujob.core.observed.snapshot import Kind, Object, Snapshot
from tfgpujob.core.reconcile import reconcile

RACK = {"topologyKey": "example.com/rack"}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def affinities(policy: dict[str, str], **job: Any) -> dict[str, Object | None]:
    outcome = reconcile(Snapshot(make.job(run={"schedulingPolicy": policy}, **job)), make.START, make.CONFIG)
    return {c.name: c.body["spec"].get("affinity") for c in outcome.creates if c.kind is Kind.POD}


def term(attempt: str = "1") -> Object:
    others = {"key": "tfgpu.dev/replica-type", "operator": "NotIn", "values": ["evaluator"]}
    labels = {"tfgpu.dev/job-name": "train", "tfgpu.dev/attempt": attempt}
    return {"labelSelector": {"matchLabels": labels, "matchExpressions": [others]}, "topologyKey": "example.com/rack"}


def test_where_it_can_be_done() -> None:
    near = {"podAffinity": {PREFERRED: [{"weight": 100, "podAffinityTerm": term()}]}}
    assert affinities(RACK, worker=2) == {"train-worker-0": near, "train-worker-1": near}


def test_the_evaluator_goes_where_it_likes_and_draws_nobody_there() -> None:
    found = affinities(RACK, worker=1, evaluator=1)
    assert found["train-evaluator-0"] is None


def test_the_templates_own_affinity_holds_besides() -> None:
    own = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b"}}}
    apart = {"podAntiAffinity": {REQUIRED: [own]}, "podAffinity": {REQUIRED: [own]}}
    job = {"worker": {"template": {"spec": {"affinity": apart}}}}
    assert affinities({**RACK, "topologyMode": "Required"}, **job) == {
        "train-worker-0": {"podAntiAffinity": {REQUIRED: [own]}, "podAffinity": {REQUIRED: [own, term()]}}
    }
    assert apart["podAffinity"] == {REQUIRED: [own]}, "the job's own object was changed"
