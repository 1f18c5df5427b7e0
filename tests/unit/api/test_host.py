"""The operator's host gate beside Pod Security "baseline", control by control, and what it refuses besides."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.api.host_access import ANNOTATIONS, KINDS, OF_CONTAINERS, OF_PODS, container, job

from tfgpujob.api import JobSpec, parse_job
from tfgpujob.api.rules.host import CONTROLS, host_access

REFUSED = [
    *(
        (container(said, kind), f"{kind}[1].{at}")
        for refused, _ in OF_CONTAINERS.values()
        for said, at in refused
        for kind in KINDS
    ),
    *((said, at) for refused, _ in OF_PODS.values() for said, at in refused),
]
ALLOWED = [
    *(container(said, kind) for row in OF_CONTAINERS.values() for said in row[1] for kind in KINDS),
    *(said for row in OF_PODS.values() for said in row[1]),
]


ASK_FOR_IT = "or ask an administrator to allow host access in this namespace"


def test_every_control_is_in_the_table() -> None:
    assert {control.name for control in CONTROLS} == {*OF_CONTAINERS, *OF_PODS}


def test_what_baseline_refuses_is_refused_with_field_and_fix() -> None:
    wrong = []
    for spec, field in REFUSED:
        found, again = parse_job(job(spec)), parse_job(job(spec), accepted=True)
        told = (
            [(i.field, bool(i.problem), i.fix.endswith(ASK_FOR_IT)) for i in found] if isinstance(found, tuple) else []
        )
        if told != [(f"spec.replicaSpecs.worker.template.spec.{field}", True, True)]:
            wrong.append((spec, field, found))
        # An administrator may allow it, and take it back.
        if not isinstance(parse_job(job(spec), allow_host=True), JobSpec) or isinstance(again, JobSpec):
            wrong.append((spec, field, again))
    assert wrong == []


def test_what_baseline_lets_pass_passes() -> None:
    assert [spec for spec in ALLOWED if not isinstance(parse_job(job(spec)), JobSpec)] == []


@pytest.mark.parametrize(("key", "passing"), ANNOTATIONS.items())
def test_what_older_servers_take_as_annotations(key: str, passing: list[str]) -> None:
    for value in passing:
        assert isinstance(parse_job(job({}, annotations={key: value})), JobSpec), value
    for value in ("unconfined", "runtime/defaultish"):
        found = parse_job(job({}, annotations={key: value}))
        assert isinstance(found, tuple)
        assert found[0].field == f"spec.replicaSpecs.worker.template.metadata.annotations[{key}]"


def test_a_system_priority_by_way_of_run_policy() -> None:
    made = job({})
    made["spec"]["runPolicy"] = {"schedulingPolicy": {"priorityClass": "system-node-critical"}}
    found = parse_job(made)
    assert isinstance(found, tuple)
    assert found[0].field == "spec.runPolicy.schedulingPolicy.priorityClass"


@pytest.mark.parametrize("odd", [1, "text", [], [1], ["text"], {"a": 1}, True])
def test_wrong_shapes_are_no_crash(odd: Any) -> None:
    keys = ("securityContext", "volumes", "containers", "initContainers", "ephemeralContainers", "nodeName")
    for key in keys:
        list(host_access({"spec": {key: odd}, "metadata": odd}, "template"))
    list(host_access({"spec": odd, "metadata": {"annotations": odd}}, "template"))
