"""One interface to any cluster: the local one, kind, or the one that KUBECONFIG names.

The integration tests and the demo use nothing else, so that the same ones run on all three.
"""

import functools
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Protocol

from localcluster import build, imagebuild, needs, runtime
from localcluster.layout import AUDIT_LOG, CACHE, IMAGES, KUBECONFIG, ClusterError, Node, Settings
from localcluster.progress import inside_a_step
from localcluster.tools import run, succeeds


class Image(NamedTuple):
    """What an image is built of."""

    tag: str
    dockerfile: Path
    context: Path
    build_args: Mapping[str, str]


class Cluster(Protocol):
    """What tests may ask of a cluster, whichever it is."""

    @property
    def description(self) -> str:
        """What cluster this is, in a few words."""

    @property
    def kubeconfig(self) -> Path:
        """An administrator's kubeconfig; the file exists after `ensure_up`."""

    @property
    def nodes(self) -> Sequence[str]:
        """Names of the nodes that pods run on."""

    @property
    def audit_log(self) -> Path | None:
        """The API server's audit log, one JSON object a line; None where it can't be read."""

    @property
    def first_time(self) -> str:
        """What it costs to have cluster and images for the first time; empty when they have been made before."""

    @property
    def removal(self) -> str:
        """The command that takes it away again."""

    @property
    def is_up(self) -> bool:
        """Whether it runs."""

    def end(self) -> None:
        """Take it away, and all that is in it. Raises ClusterError where that can't be done."""

    def ensure_up(self, nodes: int = 1, images: Sequence[Image] = ()) -> None:
        """Start the cluster if it isn't running, with at least this many nodes that all have these images.

        Raises ClusterError.
        """

    def load_image(self, tag: str, dockerfile: Path, context: Path, build_args: Mapping[str, str]) -> None:
        """Build an image and make it known to every node. Raises ClusterError."""

    def stop_node(self, name: str) -> None:
        """Take a node away, as a power cut would. Raises ClusterError where that can't be done."""

    def start_node(self, name: str) -> None:
        """Bring a stopped node back. Raises ClusterError where that can't be done."""

    def restart_component(self, name: str) -> None:
        """Kill etcd or apiserver, which starts again by itself. Raises ClusterError where that can't be done."""

    def read_from_node(self, path: str) -> bytes | None:
        """A file of a node's disk, such as one in the folder behind a volume; None where it can't be had."""


def select() -> Cluster:
    """The cluster that TFGPU_CLUSTER names (local, kind or existing).

    Without it: kind where Docker or Podman runs and kind is installed, else the local one. A cluster that
    only KUBECONFIG names is never touched unasked.
    """
    name = os.environ.get("TFGPU_CLUSTER") or ("kind" if _container_engine() and shutil.which("kind") else "local")
    kinds: dict[str, type[Local | Kind | Existing]] = {"local": Local, "kind": Kind, "existing": Existing}
    if name not in kinds:
        raise ClusterError(f"TFGPU_CLUSTER={name} is no kind of cluster", "set it to local, kind or existing")
    return kinds[name]()


def save_image(tag: str, dockerfile: Path, context: Path, build_args: Mapping[str, str], target: Path) -> None:
    """Build an image into a docker-archive: by Docker or Podman where one runs, else as the local cluster does.

    Raises ClusterError.
    """
    engine = _container_engine()
    if engine is None:
        imagebuild.save_image(tag, dockerfile, context, build_args, target)
    else:
        _save(engine, tag, dockerfile, context, build_args, target)


class Local:
    """The cluster of this package."""

    description = "the local cluster (pretend GPUs)"
    kubeconfig = KUBECONFIG
    audit_log = AUDIT_LOG
    removal = "make cluster-down"

    @property
    def first_time(self) -> str:
        built = IMAGES.is_dir() and any(IMAGES.iterdir())
        return "" if built else f"8 to 20 minutes on 2 cores, and 10 GB in {CACHE}"

    @property
    def nodes(self) -> Sequence[str]:
        return [node.name for node in runtime.running_nodes()]

    @property
    def is_up(self) -> bool:
        return bool(runtime.running_nodes())

    def end(self) -> None:
        with runtime.exclusive():
            runtime.down()

    def ensure_up(self, nodes: int = 1, images: Sequence[Image] = ()) -> None:
        """Images are built while the programs are compiled: one waits for disk and network where the other computes."""
        with runtime.exclusive():
            needs.check_machine()
            needs.install_packages()
        with ThreadPoolExecutor(max_workers=1) as beside:
            exported = beside.submit(_export, images)
            with runtime.exclusive():
                running = Settings.load() or Settings()
                runtime.up(Settings(**{**vars(running), "nodes": max(nodes, running.nodes)}))
            exported.result()
        if images:
            with runtime.exclusive():
                runtime.import_images()

    def load_image(self, tag: str, dockerfile: Path, context: Path, build_args: Mapping[str, str]) -> None:
        imagebuild.build_image(tag, dockerfile, context, build_args)

    def stop_node(self, name: str) -> None:
        node = self._node(name)
        if node.number == 1:
            raise ClusterError("node1 holds the control plane", "stop another node")
        with runtime.exclusive():
            runtime.stop_node(node)

    def start_node(self, name: str) -> None:
        node = self._node(name)
        with runtime.exclusive():
            if not runtime.is_ready(node):
                runtime.start_node(node, build.ensure_built())

    def restart_component(self, name: str) -> None:
        runtime.kill_component(name)

    def read_from_node(self, path: str) -> bytes | None:
        return Path(path).read_bytes() if Path(path).is_file() else None

    def _node(self, name: str) -> Node:
        return Node(int(name.removeprefix("node")))


class Kind:
    """A kind cluster, made with Docker or Podman. Not tried on the machine that it was written on."""

    name = "tfgpujob"
    description = "a kind cluster"
    audit_log = None
    removal = f"kind delete cluster --name {name}"

    @property
    def first_time(self) -> str:
        if self.is_up:
            return ""
        return "as long as it takes to download 2 GB and to build two images, which was not measured"

    @property
    def is_up(self) -> bool:
        return self.name in run("kind", "get", "clusters").split()

    def end(self) -> None:
        run("kind", "delete", "cluster", "--name", self.name)

    @functools.cached_property
    def kubeconfig(self) -> Path:
        return CACHE / "kind.kubeconfig"

    @property
    def nodes(self) -> Sequence[str]:
        return [node for node in run("kind", "get", "nodes", "--name", self.name).split()
                if not node.endswith("control-plane")]  # fmt: skip

    def ensure_up(self, nodes: int = 1, images: Sequence[Image] = ()) -> None:
        CACHE.mkdir(parents=True, exist_ok=True)
        if not self.is_up:
            # Not fewer than the tests need, since a kind cluster gets no more later.
            roles = ["control-plane", *["worker"] * max(nodes, 2)]
            config = "kind: Cluster\napiVersion: kind.x-k8s.io/v1alpha4\nnodes:\n"
            config += "".join(f"- role: {role}\n" for role in roles)
            image = os.environ.get("TFGPU_KIND_IMAGE")
            of_version = ("--image", image) if image else ()
            run("kind", "create", "cluster", "--name", self.name, *of_version, "--config", "-", stdin=config)
        elif len(self.nodes) < nodes:
            raise ClusterError(
                f"the kind cluster has fewer than {nodes} worker nodes", f"kind delete cluster --name {self.name}"
            )
        self.kubeconfig.write_text(run("kind", "get", "kubeconfig", "--name", self.name))
        self.kubeconfig.chmod(0o600)
        for node in self.nodes:
            self._add_pretend_gpus(node)
        for wanted in images:
            self.load_image(*wanted)

    def load_image(self, tag: str, dockerfile: Path, context: Path, build_args: Mapping[str, str]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            _save(_engine(), tag, dockerfile, context, build_args, Path(folder, "image.tar"))
            run("kind", "load", "image-archive", "--name", self.name, f"{folder}/image.tar")

    def stop_node(self, name: str) -> None:
        run(_engine(), "kill", name)

    def start_node(self, name: str) -> None:
        run(_engine(), "start", name)

    def restart_component(self, name: str) -> None:
        program = {"apiserver": "kube-apiserver"}.get(name, name)
        run(_engine(), "exec", f"{self.name}-control-plane", "pkill", "--signal", "KILL", "--exact", program)

    def read_from_node(self, path: str) -> bytes | None:
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder, "copy")
            for node in self.nodes:
                if succeeds(_engine(), "cp", f"{node}:{path}", copy) and copy.is_file():
                    return copy.read_bytes()
        return None

    def _add_pretend_gpus(self, node: str) -> None:
        """Extended resources by a patch of the status: the scheduler enforces them, no device is behind them."""
        patch = '[{"op":"add","path":"/status/capacity/nvidia.com~1gpu","value":"8"}]'
        run("kubectl", "--kubeconfig", self.kubeconfig, "patch", "node", node, "--subresource=status",
            "--type=json", "--patch", patch)  # fmt: skip


class Existing:
    """The cluster that KUBECONFIG names, used as it is."""

    audit_log = None
    nodes: Sequence[str] = ()
    removal = "helm uninstall tfgpujob --namespace tfgpu-system"
    first_time = ""
    is_up = True

    @property
    def description(self) -> str:
        return f"the cluster of {self.kubeconfig}"

    @property
    def kubeconfig(self) -> Path:
        return Path(os.environ.get("KUBECONFIG") or Path.home() / ".kube" / "config")

    def ensure_up(self, nodes: int = 1, images: Sequence[Image] = ()) -> None:  # noqa: ARG002
        """The images must have been pushed to a registry that the cluster pulls from."""
        if not self.kubeconfig.is_file():
            raise ClusterError(f"there is no kubeconfig {self.kubeconfig}", "set KUBECONFIG to the cluster's")

    def load_image(self, tag: str, dockerfile: Path, context: Path, build_args: Mapping[str, str]) -> None:
        """Nothing: the image must have been pushed to a registry that the cluster pulls from."""

    def stop_node(self, name: str) -> None:
        raise ClusterError(f"node {name} of a cluster of yours is not ours to stop", "use TFGPU_CLUSTER=local")

    start_node = stop_node

    def end(self) -> None:
        raise ClusterError("a cluster of yours is not ours to end", "use TFGPU_CLUSTER=local")

    def restart_component(self, name: str) -> None:
        raise ClusterError(f"the {name} of a cluster of yours is not ours to kill", "use TFGPU_CLUSTER=local")

    def read_from_node(self, path: str) -> bytes | None:  # noqa: ARG002
        return None


def _export(images: Sequence[Image]) -> None:
    with inside_a_step():
        for image in images:
            imagebuild.export_image(*image)


def _save(  # noqa: PLR0917 - as in the protocol
    engine: str, tag: str, dockerfile: Path, context: Path, build_args: Mapping[str, str], target: Path
) -> None:
    arguments = [f"--build-arg={name}={value}" for name, value in build_args.items()]
    run(engine, "build", *arguments, "--tag", tag, "--file", dockerfile, context)
    run(engine, "save", "--output", target, tag)


def _container_engine() -> str | None:
    return next((engine for engine in ("docker", "podman") if succeeds(engine, "info")), None)


def _engine() -> str:
    engine = _container_engine()
    if engine is None:
        raise ClusterError("neither docker nor podman runs here", "start one, or use TFGPU_CLUSTER=local")
    return engine
