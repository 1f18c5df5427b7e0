"""Enforces the ingress of NetworkPolicies for the pods of one node, with the packet filter of the node's namespace.

Run on each node as `python -m localcluster.policies NUMBER`. Egress is not enforced. A pod's own node always gets
through, as everywhere: what it sends passes no FORWARD chain.
"""

import ipaddress
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from localcluster.api import Api, Object, Watched
from localcluster.layout import RUN, ClusterError, Node
from localcluster.tools import run, succeeds

CHAIN = "TFGPU-POLICY"
# kube-proxy leaves this table alone, so the order of its rules and ours does not matter.
TABLE = "mangle"
PAUSE_SECONDS = 0.05
"""Between two renderings: many events come at once."""


def render(
    policies: Iterable[Object], pods: Iterable[Object], namespaces: Iterable[Object], pod_network: str
) -> list[str]:
    """The rules of our chain, for iptables-restore: who may reach the pods of this network that a policy selects."""
    labels_of = {n["metadata"]["name"]: n["metadata"].get("labels") or {} for n in namespaces}
    present = [pod for pod in pods if _has_address_of_its_own(pod)]
    ingress = [p for p in policies if "Ingress" in (p["spec"].get("policyTypes") or ["Ingress"])]
    rules = []
    for pod in present:
        address = pod["status"]["podIP"]
        if ipaddress.ip_address(address) not in ipaddress.ip_network(pod_network):
            continue
        chosen = [
            policy
            for policy in ingress
            if policy["metadata"]["namespace"] == pod["metadata"]["namespace"]
            and matches(policy["spec"]["podSelector"], pod["metadata"].get("labels") or {})
        ]
        for policy in chosen:
            for rule in policy["spec"].get("ingress") or []:
                sources = list(_sources(rule.get("from"), policy["metadata"]["namespace"], present, labels_of))
                for ports in _ports(rule.get("ports"), pod):
                    rules += [f"-A {CHAIN}{source} -d {address}/32{ports} -j RETURN" for source in sources]
        if chosen:
            rules.append(f"-A {CHAIN} -d {address}/32 -j DROP")
    return rules


def matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a label selector selects these labels; an empty one selects everything."""
    return all(labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items()) and all(
        _meets(expression, labels) for expression in selector.get("matchExpressions") or []
    )


def _meets(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, values = expression["key"], expression.get("values") or []
    return {
        "In": labels.get(key) in values,
        "NotIn": labels.get(key) not in values,
        "Exists": key in labels,
        "DoesNotExist": key not in labels,
    }[expression["operator"]]


def _has_address_of_its_own(pod: Object) -> bool:
    """The address of one that has ended may be another's by now; that of a pod in the node's network is the node's."""
    ended = pod["status"].get("phase") in ("Succeeded", "Failed")
    return bool(pod["status"].get("podIP")) and not ended and not pod["spec"].get("hostNetwork")


def _sources(
    peers: Sequence[Mapping[str, Any]] | None,
    namespace: str,
    pods: Sequence[Object],
    labels_of: Mapping[str, Mapping[str, str]],
) -> Iterator[str]:
    """Matches of the source address, one for each that is let in; without peers everybody is."""
    if not peers:
        yield ""
    for peer in peers or ():
        if block := peer.get("ipBlock"):
            yield from (f" -s {network}" for network in _networks(block))
            continue
        of_pods, of_namespaces = peer.get("podSelector"), peer.get("namespaceSelector")
        for pod in pods:
            home = pod["metadata"]["namespace"]
            near = home == namespace if of_namespaces is None else matches(of_namespaces, labels_of.get(home, {}))
            if near and (of_pods is None or matches(of_pods, pod["metadata"].get("labels") or {})):
                yield f" -s {pod['status']['podIP']}/32"


def _networks(block: Mapping[str, Any]) -> list[str]:
    """An ipBlock without its exceptions."""
    left = [ipaddress.ip_network(block["cidr"])]
    for text in block.get("except") or ():
        hole = ipaddress.ip_network(text)
        left = [
            part
            for whole in left
            for part in (
                whole.address_exclude(hole)  # type: ignore[arg-type]  # both are of one version
                if hole.subnet_of(whole)  # type: ignore[arg-type]
                else [whole]
            )
        ]
    return [str(network) for network in left]


def _ports(ports: Sequence[Mapping[str, Any]] | None, pod: Object) -> Iterator[str]:
    """Matches of the port, one for each that is open; without ports all are. A named one is the pod's own."""
    if not ports:
        yield ""
    for port in ports or ():
        protocol, wanted = str(port.get("protocol") or "TCP"), port.get("port")
        match = f" -p {protocol.lower()}"
        if wanted is None:
            yield match
        elif isinstance(wanted, int):
            yield f"{match} --dport {wanted}" + (f":{port['endPort']}" if port.get("endPort") else "")
        else:
            own = (p for container in pod["spec"]["containers"] for p in container.get("ports") or ())
            named = (p for p in own if p.get("name") == wanted and (p.get("protocol") or "TCP") == protocol)
            yield from (f"{match} --dport {p['containerPort']}" for p in named)


def _apply(rules: Sequence[str]) -> None:
    """Replace the chain's rules all at once. What is connected already stays so."""
    kept = f"-A {CHAIN} -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN"
    text = "\n".join((f"*{TABLE}", f":{CHAIN} - [0:0]", kept, *rules, "COMMIT", ""))
    run("iptables-restore", "--noflush", "--wait", stdin=text)
    hook = ("FORWARD", "-j", CHAIN)
    if not succeeds("iptables", "--wait", "-t", TABLE, "-C", *hook):
        run("iptables", "--wait", "-t", TABLE, "-A", *hook)


def main() -> None:
    """Enforce for ever."""
    node, api, changed = Node(int(sys.argv[1])), Api(RUN / "addons.kubeconfig"), threading.Event()
    listed: set[str] = set()

    def watched(path: str) -> Watched:
        def note() -> None:
            listed.add(path)
            changed.set()

        return Watched(api, path, note)

    paths = ("/apis/networking.k8s.io/v1/networkpolicies", "/api/v1/pods", "/api/v1/namespaces")
    parts = [watched(path) for path in paths]
    for part in parts:
        part.start()
    applied: list[str] | None = None
    while True:
        changed.wait()
        changed.clear()
        # Half of what there is would open what is closed, or close what is open.
        if len(listed) == len(paths):
            policies, pods, namespaces = (part.objects.values() for part in parts)
            rules = render(policies, pods, namespaces, node.pod_network)
            if rules != applied:
                try:
                    _apply(rules)
                    applied = rules
                except ClusterError as error:
                    print(error.problem, file=sys.stderr, flush=True)
                    changed.set()
        time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    main()
