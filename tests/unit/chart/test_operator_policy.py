"""admissionPolicy.operator: what the operator does passes, and what else its token could do does not."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.api.policy_evaluator import Policy
from tests.unit.chart.rendered import Object, kinds, of, render
from tests.unit.core import make
from tests.unit.core.simulator import World

ON: Object = {"admissionPolicy": {"operator": True}}
NAME = "tfgpu-tfgpujob-operator"
CREATE, DELETE = {"operation": "CREATE", "namespace": "ns"}, {"operation": "DELETE", "namespace": "ns"}
OWNED = {"ownerReferences": [{"kind": "TFGPUJob", "apiVersion": "tfgpu.dev/v1alpha1", "controller": True}]}


def spec(name: str, **values: Any) -> Object:
    found: Object = of(render({**ON, **values}), "ValidatingAdmissionPolicy", name)["spec"]
    return found


@pytest.fixture(scope="module", name="policy")
def policy_() -> Policy:
    return Policy(spec(NAME))


@pytest.mark.slow
def test_what_the_operator_makes_and_deletes_passes(policy: Policy) -> None:
    world = World.begun(make.job(image="mine:1"))
    pods = Policy(spec(f"{NAME}-pods"))
    for obj in world.objects.values():
        resource = {"resource": {"resource": f"{obj['kind'].lower()}s"}}
        assert policy.refusals(obj, **CREATE, **resource) == [], obj["kind"]
        if obj["kind"] == "Pod":
            assert policy.refusals(obj, **DELETE, **resource) == []
            assert pods.refusals(obj, **CREATE) == []
    assert {kind for kind, _ in world.objects} >= {"Pod", "Service"}


@pytest.mark.parametrize(
    ("resource", "metadata", "said", "namespace", "why"),
    [
        ("pods", {}, {}, "ns", "only what a TFGPUJob owns"),
        ("pods", {"ownerReferences": [{"kind": "Job", "apiVersion": "batch/v1"}]}, {}, "ns", "a TFGPUJob owns"),
        ("pods", OWNED, {}, "kube-system", "in namespaces whose jobs are not run"),
        ("pods", OWNED, {}, "ops", "in namespaces whose jobs are not run"),
        ("services", OWNED, {}, "ns", "headless"),
        ("services", OWNED, {"clusterIP": "None", "externalIPs": ["1.2.3.4"]}, "ns", "headless"),
    ],
)
def test_what_it_never_does_is_refused(
    policy: Policy, resource: str, metadata: Object, said: Object, namespace: str, why: str
) -> None:
    request = {"operation": "CREATE", "namespace": namespace, "resource": {"resource": resource}}
    (refusal,) = policy.refusals({"metadata": metadata, "spec": said}, **request)
    assert why in refusal


@pytest.mark.slow
def test_a_pod_that_owns_its_node_is_refused() -> None:
    pods = Policy(spec(f"{NAME}-pods"))
    for said in ({"hostPID": True}, {"nodeName": "n"}, {"volumes": [{"name": "a", "hostPath": {"path": "/"}}]}):
        assert pods.refusals({"metadata": OWNED, "spec": {"containers": [{"name": "a"}], **said}}, **CREATE)


def test_it_is_about_the_operators_user_alone_and_what_is_allowed_is_left_out() -> None:
    user = 'request.userInfo.username == "system:serviceaccount:ops:tfgpu-tfgpujob"'
    for name in (NAME, f"{NAME}-pods"):
        assert [each["expression"] for each in spec(name)["matchConditions"]] == [user]
    constraints = spec(f"{NAME}-pods", allowHostAccessNamespaces=["infra"])["matchConstraints"]
    assert constraints["namespaceSelector"]["matchExpressions"][0]["values"] == ["infra"]
    everywhere = render({**ON, "allowHostAccessNamespaces": ["*"]})
    assert f"{NAME}-pods" not in [o["metadata"]["name"] for o in everywhere]
    assert "ValidatingAdmissionPolicy" not in kinds(render())
