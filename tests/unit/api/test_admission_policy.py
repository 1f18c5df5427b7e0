"""The chart's ValidatingAdmissionPolicy refuses what the operator's host gate refuses, with the same words."""

from __future__ import annotations

import re
from itertools import cycle
from typing import Any

import pytest
from tests.unit.api.host_access import ANNOTATIONS, KINDS, OF_CONTAINERS, OF_PODS, container, job
from tests.unit.api.policy_evaluator import Policy

from tfgpujob.api import parse_job
from tfgpujob.api.admission_policy import policy
from tfgpujob.names import Role

POLICY = Policy(policy())


def expect_same(obj: dict[str, Any]) -> None:
    """The policy says what the operator says, but for which of several items it is."""
    found = parse_job(obj)
    said = [str(invalid) for invalid in found] if isinstance(found, tuple) else []
    told = POLICY.refusals(obj)
    assert len(told) == len(said), (told, said)
    for policys, operators in zip(told, said, strict=True):
        words = re.escape(policys).replace(re.escape("Specs.*."), r"Specs\.\w+\.").replace(re.escape("[*]"), r"\[\d+\]")
        words = words.replace(r"spec\.containers", r"spec\.(c|initC|ephemeralC)ontainers").replace(r"/\*\]", r"/\w+\]")
        assert re.fullmatch(words, operators), (policys, operators)


def one_kind_each(said: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each said by a container of one kind, in turns: celpy takes its time."""
    return [container(each, kind) for each, kind in zip(said, cycle(KINDS), strict=False)]


@pytest.mark.slow
def test_what_the_host_gate_refuses_is_refused_with_the_same_words() -> None:
    of_containers = [said for refused, _ in OF_CONTAINERS.values() for said, _ in refused]
    of_pods = [said for refused, _ in OF_PODS.values() for said, _ in refused]
    for spec in of_pods + one_kind_each(of_containers):
        expect_same(job(spec))
    for key in ANNOTATIONS:
        expect_same(job({}, annotations={key: "unconfined"}))
    made = job({})
    made["spec"]["runPolicy"] = {"schedulingPolicy": {"priorityClass": "system-node-critical"}}
    expect_same(made)


@pytest.mark.slow
def test_what_the_host_gate_lets_pass_passes() -> None:
    of_containers = [said for _, allowed in OF_CONTAINERS.values() for said in allowed]
    of_pods = [said for _, allowed in OF_PODS.values() for said in allowed]
    for spec in of_pods + one_kind_each(of_containers):
        assert POLICY.refusals(job(spec)) == [], spec
    for key, passing in ANNOTATIONS.items():
        for value in passing:
            assert POLICY.refusals(job({}, annotations={key: value})) == [], value


def test_every_role_is_looked_at_and_what_is_absent_or_null_passes() -> None:
    for role in Role:
        obj = {"spec": {"replicaSpecs": {"other": None, role: {"template": {"spec": {"hostPID": True}}}}}}
        assert len(POLICY.refusals(obj)) == 1, role
    nothing: list[Any] = [{}, {"replicaSpecs": None}, {"replicaSpecs": {"worker": {}}}, {"replicaSpecs": {"ps": None}}]
    nothing += [{"replicaSpecs": {"worker": {"template": template}}} for template in (None, {}, {"spec": None})]
    nothing += [{"replicaSpecs": {"worker": {"template": {"spec": {"containers": None, "securityContext": None}}}}}]
    for spec in nothing:
        assert POLICY.refusals({"spec": spec}) == [], spec
