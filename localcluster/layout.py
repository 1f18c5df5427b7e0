"""Where everything lives: folders of the user's cache, addresses, and the settings of one cluster."""

import dataclasses
import json
import os
import platform
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tfgpujob" / "localcluster"
RUN = CACHE / "run"
PKI = RUN / "pki"
KUBECONFIG = RUN / "admin.kubeconfig"
AUDIT_LOG = RUN / "audit" / "audit.log"
VOLUMES = RUN / "volumes"
IMAGES = CACHE / "images"

HOST_LINK = "tfgpu0"
HOST_ADDRESS = "10.213.0.1"
MASTER_ADDRESS = "10.213.0.2"
NODE_NETWORK = "10.213.0.0/24"
POD_NETWORK = "10.214.0.0/16"
SERVICE_NETWORK = "10.215.0.0/16"
KUBERNETES_SERVICE = "10.215.0.1"
API_SERVER = f"https://{MASTER_ADDRESS}:6443"
CLUSTER_DOMAIN = "cluster.local"

PAUSE_IMAGE = "localhost/pause:3.2"
BUSYBOX_IMAGE = "docker.io/library/busybox:1"
GPU_RESOURCE = "nvidia.com/gpu"
MAX_NODES = 4


class ClusterError(Exception):
    """Something is missing or broken; `fix` says what to do about it."""

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.fix = fix


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What one cluster was started with. Durations are seconds, `api_qps` is requests per second."""

    nodes: int = 1
    gpus: int = 8
    node_grace: int = 5
    toleration: int = 30
    api_qps: int = 1000

    def save(self) -> None:
        """Remember the settings of the cluster that is being started."""
        RUN.mkdir(parents=True, exist_ok=True)
        _settings_file().write_text(json.dumps(dataclasses.asdict(self)))

    @classmethod
    def load(cls) -> "Settings | None":
        """The settings of the cluster that was started last, None when it was taken down since."""
        try:
            return cls(**json.loads(_settings_file().read_text()))
        except (FileNotFoundError, ValueError, TypeError):
            return None


def _settings_file() -> Path:
    return RUN / "settings.json"


@dataclasses.dataclass(frozen=True)
class Node:
    """Names, addresses and folders of the node with this number, counted from 1.

    Node 1 holds the control plane. Every other node hangs off node 1 by a point-to-point link.
    """

    number: int

    @property
    def name(self) -> str:
        """The node's name in the cluster."""
        return f"node{self.number}"

    @property
    def folder(self) -> Path:
        """The node's own folder of the run directory."""
        return RUN / self.name

    @property
    def address(self) -> str:
        """The node's own IPv4 address."""
        return f"10.213.0.{4 * (self.number - 1) + 2}"

    @property
    def gateway(self) -> str:
        """The address at the other end of the node's link: this machine for node 1, else node 1."""
        return f"10.213.0.{4 * (self.number - 1) + 1}"

    @property
    def pod_network(self) -> str:
        """Where the node's pods get their addresses from."""
        return f"10.214.{self.number - 1}.0/24"

    @property
    def cgroup(self) -> str:
        """The node's cgroup, the same in every hierarchy."""
        return f"/tfgpu-{self.name}"

    @property
    def logs(self) -> Path:
        """One file a component."""
        return self.folder / "log"

    @property
    def containerd_root(self) -> Path:
        """The content store, which outlives the node."""
        return RUN / "containerd" / self.name

    @property
    def ready_file(self) -> Path:
        """Exists when the node has reported Ready with its GPUs and a pod can start."""
        return self.folder / "ready"

    @property
    def go_file(self) -> Path:
        """Exists when the node's network is laid."""
        return self.folder / "go"


def debian_architecture() -> str:
    """The machine's architecture in the words of Debian and of image manifests."""
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
