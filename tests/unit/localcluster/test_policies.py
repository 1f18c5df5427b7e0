"""Which rules of the packet filter NetworkPolicies become."""

from typing import Any

import pytest
from localcluster.policies import CHAIN, matches, render

NETWORK = "10.214.0.0/24"


def pod(name: str, ip: str, namespace: str = "team", phase: str = "Running", **labels: str) -> dict[str, Any]:
    ports = [{"name": "http", "containerPort": 8080}, {"name": "http", "containerPort": 53, "protocol": "UDP"}]
    return {
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"containers": [{"name": "main", "ports": ports}]},
        "status": {"phase": phase, "podIP": ip},
    }


def policy(ingress: list[dict[str, Any]] | None, namespace: str = "team", **spec: Any) -> dict[str, Any]:
    whole = {"podSelector": {"matchLabels": {"job": "a"}}, "policyTypes": ["Ingress"], "ingress": ingress, **spec}
    return {"metadata": {"name": "p", "namespace": namespace}, "spec": whole}


SERVER, PEER = pod("a-0", "10.214.0.2", job="a"), pod("a-1", "10.214.1.3", job="a")
STRANGER = pod("b-0", "10.214.0.4", job="b")
OPERATOR = pod("op", "10.214.0.9", "system", app="operator")
PODS = [SERVER, PEER, STRANGER, OPERATOR]
NAMESPACES: list[dict[str, Any]] = [
    {"metadata": {"name": "team"}},
    {"metadata": {"name": "system", "labels": {"name": "system"}}},
]


def rules(*policies: dict[str, Any], pods: list[dict[str, Any]] = PODS) -> list[str]:
    return [rule.removeprefix(f"-A {CHAIN} ") for rule in render(policies, pods, NAMESPACES, NETWORK)]


CLOSED = "-d 10.214.0.2/32 -j DROP"


def test_without_a_policy_there_are_no_rules() -> None:
    assert rules() == []
    assert rules(policy([], namespace="system")) == [], "a policy selects pods of its own namespace only"
    assert rules(policy([], policyTypes=["Egress"])) == []


def test_what_a_job_of_ours_asks_for() -> None:
    own = {"podSelector": {"matchLabels": {"job": "a"}}}
    operator = {"namespaceSelector": {"matchLabels": {"name": "system"}}, "podSelector": {"matchLabels": OPERATOR_IS}}
    asked = policy([{"from": [own]}, {"from": [operator], "ports": [{"port": 8080, "protocol": "TCP"}]}])
    assert rules(asked) == [
        "-s 10.214.0.2/32 -d 10.214.0.2/32 -j RETURN",
        "-s 10.214.1.3/32 -d 10.214.0.2/32 -j RETURN",
        "-s 10.214.0.9/32 -d 10.214.0.2/32 -p tcp --dport 8080 -j RETURN",
        CLOSED,
    ], "the other pod of the job is on another node, whose rules close it"


OPERATOR_IS = {"app": "operator"}


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({}, ["-d 10.214.0.2/32 -j RETURN"]),
        ({"from": []}, ["-d 10.214.0.2/32 -j RETURN"]),
        ({"from": [{"podSelector": {}}]}, [f"-s {ip}/32 -d 10.214.0.2/32 -j RETURN" for ip in
                                           ("10.214.0.2", "10.214.1.3", "10.214.0.4")]),
        ({"from": [{"namespaceSelector": {"matchLabels": {"name": "system"}}}]},
         ["-s 10.214.0.9/32 -d 10.214.0.2/32 -j RETURN"]),
        ({"from": [{"namespaceSelector": {"matchLabels": {"name": "x"}}}]}, []),
        ({"from": [{"podSelector": {"matchLabels": OPERATOR_IS}}]}, []),
        ({"from": [{"ipBlock": {"cidr": "10.0.0.0/30", "except": ["10.0.0.0/31"]}}]},
         ["-s 10.0.0.2/31 -d 10.214.0.2/32 -j RETURN"]),
        ({"ports": [{"port": "http"}]}, ["-d 10.214.0.2/32 -p tcp --dport 8080 -j RETURN"]),
        ({"ports": [{"port": "http", "protocol": "UDP"}]}, ["-d 10.214.0.2/32 -p udp --dport 53 -j RETURN"]),
        ({"ports": [{"port": "other"}]}, []),
        ({"ports": [{"port": 1, "endPort": 9}]}, ["-d 10.214.0.2/32 -p tcp --dport 1:9 -j RETURN"]),
        ({"ports": [{"protocol": "UDP"}]}, ["-d 10.214.0.2/32 -p udp -j RETURN"]),
    ],
    ids=str,
)  # fmt: skip
def test_who_is_let_in(rule: dict[str, Any], expected: list[str]) -> None:
    assert rules(policy([rule])) == [*expected, CLOSED]


def test_policies_add_up_and_everything_else_is_closed() -> None:
    both = rules(policy(None), policy([{"ports": [{"port": 1}]}]))
    assert both == ["-d 10.214.0.2/32 -p tcp --dport 1 -j RETURN", CLOSED]


def test_who_has_no_address_of_its_own_is_neither_closed_nor_let_in() -> None:
    ended = pod("a-9", "10.214.0.7", phase="Succeeded", job="a")
    starting = {**pod("a-8", "", job="a"), "status": {"phase": "Pending"}}
    on_node = pod("a-7", "10.214.0.6", job="a")
    on_node["spec"]["hostNetwork"] = True
    asked = policy([{"from": [{"podSelector": {}}]}])
    assert rules(asked, pods=[SERVER, ended, starting, on_node]) == [
        "-s 10.214.0.2/32 -d 10.214.0.2/32 -j RETURN",
        CLOSED,
    ]


@pytest.mark.parametrize(
    ("operator", "values", "selects"),
    [("In", ["a"], True), ("In", ["b"], False), ("NotIn", ["a"], False), ("Exists", None, True),
     ("DoesNotExist", None, False)],
)  # fmt: skip
def test_label_expressions(operator: str, values: list[str] | None, selects: bool) -> None:
    expression = {"key": "job", "operator": operator, "values": values}
    assert matches({"matchExpressions": [expression]}, {"job": "a"}) is selects
