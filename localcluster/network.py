"""Links and routes between this machine and the nodes' network namespaces.

The link of node 1 ends here; every other node hangs off node 1. No route leads out of the machine: the
nodes have no default route but the one to node 1, and nothing here forwards for them.
"""

from pathlib import Path

from localcluster.layout import (
    HOST_ADDRESS,
    HOST_LINK,
    MASTER_ADDRESS,
    NODE_NETWORK,
    POD_NETWORK,
    RUN,
    SERVICE_NETWORK,
    ClusterError,
    Node,
)
from localcluster.tools import run, succeeds


def connect(node: Node, pid: int, master_pid: int) -> None:
    """Lay the link of a node whose namespaces the process `pid` lives in, and its routes."""
    if node.number == 1:
        _connect_master(node, pid)
    else:
        _connect_worker(node, pid, master_pid)


def check_ours() -> None:
    """Raises ClusterError when the link of this machine leads to another cluster than that of this cache."""
    if succeeds("ip", "link", "show", HOST_LINK) and not _ours():
        raise ClusterError(
            f"another local cluster is up on this machine (the link {HOST_LINK} is not ours)",
            "take it down with the XDG_CACHE_HOME that it was started with",
        )


def disconnect() -> None:
    """Remove our link and with it its routes.

    It would be deleted with node 1's namespace, but unanswered connections keep that for minutes.
    """
    if _ours():
        succeeds("ip", "link", "delete", HOST_LINK)


def _ours() -> bool:
    alias = Path("/sys/class/net", HOST_LINK, "ifalias")
    return alias.exists() and alias.read_text().strip() == str(RUN)


def _connect_master(node: Node, pid: int) -> None:
    disconnect()
    run("ip", "link", "add", HOST_LINK, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
    run("ip", "link", "set", HOST_LINK, "alias", str(RUN))
    run("ip", "address", "add", f"{HOST_ADDRESS}/30", "dev", HOST_LINK)
    run("ip", "link", "set", HOST_LINK, "up")
    for network in (POD_NETWORK, NODE_NETWORK):
        run("ip", "route", "replace", network, "via", MASTER_ADDRESS, "dev", HOST_LINK, "onlink")
    _inside(pid, *_addresses(node))
    # A service's address needs some route before kube-proxy's rules can send it elsewhere.
    _inside(pid, f"ip route replace {SERVICE_NETWORK} dev lo", "sysctl -q -w net.ipv4.ip_forward=1")


def _connect_worker(node: Node, pid: int, master_pid: int) -> None:
    _inside(
        master_pid,
        f"if ip link show {node.name} >/dev/null 2>&1; then ip link delete {node.name}; fi",
        f"ip link add {node.name} type veth peer name eth0 netns {pid}",
        f"ip address add {node.gateway}/30 dev {node.name}",
        f"ip link set {node.name} up",
        f"ip route replace {node.pod_network} via {node.address}",
    )
    _inside(pid, *_addresses(node), f"ip route replace default via {node.gateway}")


def _addresses(node: Node) -> list[str]:
    return ["ip link set lo up", f"ip address add {node.address}/30 dev eth0", "ip link set eth0 up"]


def _inside(pid: int, *commands: str) -> None:
    run("nsenter", "-t", str(pid), "-n", "sh", "-ec", "\n".join(commands))
