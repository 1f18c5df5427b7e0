"""Who may reach the pods of a job that has a NetworkPolicy."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.core import make

from tfgpujob import names
from tfgpujob.core.observed.metadata import pod_labels
from tfgpujob.core.pods.network_policy import build_network_policy, isolated
from tfgpujob.names import Role
from tfgpujob_contract.pod import PROGRESS_PORT

CONFIG = replace(
    make.CONFIG,
    network_policy_namespaces=frozenset({"ns"}),
    operator_namespace="tfgpu-system",
    operator_labels=(("app.kubernetes.io/component", "operator"), ("app.kubernetes.io/instance", "tfgpu")),
)


@pytest.mark.parametrize(("namespaces", "gets_one"), [("", False), ("ns", True), ("*", True), ("other", False)])
def test_a_job_gets_one_in_the_namespaces_that_are_named(namespaces: str, gets_one: bool) -> None:
    config = replace(make.CONFIG, network_policy_namespaces=frozenset(namespaces.split()))
    assert isolated(make.job(), config) is gets_one


def test_it_selects_every_pod_of_every_attempt_and_goes_with_its_job() -> None:
    policy = build_network_policy(make.job(), CONFIG)
    for role in Role:
        assert policy["spec"]["podSelector"]["matchLabels"].items() <= pod_labels("train", role, 3, 7, 1).items()
    (owner,) = policy["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == (names.KIND, make.JOB_UID, True)
    assert policy["metadata"]["labels"][names.LABEL_JOB_NAME] == "train", "or the watch would not tell of it"


def test_the_jobs_pods_reach_every_port_the_operators_only_progress_and_nobody_else_any() -> None:
    spec = build_network_policy(make.job(), CONFIG)["spec"]
    own, operator = spec["ingress"]
    assert spec["policyTypes"] == ["Ingress"], "what a job reaches is not our business"
    assert own == {"from": [{"podSelector": spec["podSelector"]}]}
    assert operator["ports"] == [{"port": PROGRESS_PORT, "protocol": "TCP"}]
    (peer,) = operator["from"]
    assert peer["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": "tfgpu-system"}}
    assert peer["podSelector"] == {"matchLabels": dict(CONFIG.operator_labels)}
