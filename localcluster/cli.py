"""The command line: `python -m localcluster up | down | status | load | build-image | ...`."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from localcluster import build, imagebuild, images, runtime
from localcluster.api import Api
from localcluster.layout import AUDIT_LOG, GPU_RESOURCE, KUBECONFIG, MAX_NODES, ClusterError, Node, Settings

DEFAULTS = Settings()
Commands = tuple[tuple[str, Callable[[argparse.Namespace], int | None], str], ...]


def main(arguments: list[str] | None = None) -> int:
    """Run one command; the exit code: 0 well, 1 an error or (of status) a cluster that is not all well."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.action(options) or 0)
    except ClusterError as error:
        print(f"error: {error.problem}\n  fix: {error.fix}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="localcluster", description=__doc__)
    commands = parser.add_subparsers(required=True)

    up = commands.add_parser("up", help="build what is missing and start the cluster; repair a broken one")
    up.add_argument("--nodes", type=int, default=DEFAULTS.nodes, choices=range(1, MAX_NODES + 1))
    up.add_argument("--gpus", type=int, default=DEFAULTS.gpus, help="pretend GPUs of each node")
    up.add_argument("--node-grace", type=int, default=DEFAULTS.node_grace,
                    help="seconds without news until a node is NotReady")  # fmt: skip
    up.add_argument("--toleration", type=int, default=DEFAULTS.toleration,
                    help="seconds that pods stay on a NotReady node")  # fmt: skip
    up.add_argument("--api-qps", type=int, default=DEFAULTS.api_qps,
                    help="requests per second that each controller and the scheduler may send")  # fmt: skip
    up.set_defaults(action=_up)

    plain: Commands = (
        ("down", _down, "stop the cluster and put the machine back as it was"),
        ("status", _status, "what runs, and where its files are"),
        ("kubeconfig", lambda _: print(KUBECONFIG), "print the path of the administrator's kubeconfig"),
    )
    for name, action, text in plain:
        commands.add_parser(name, help=text).set_defaults(action=action)

    load = commands.add_parser("load", help="import docker-archives into every node")
    load.add_argument("archives", nargs="+", type=Path, metavar="IMAGE_TAR")
    load.set_defaults(action=_load)

    make = commands.add_parser("build-image", help="build a Dockerfile and import it into every node")
    make.add_argument("tag")
    make.add_argument("--file", type=Path, default=Path("Dockerfile"), help="the Dockerfile")
    make.add_argument("--context", type=Path, default=Path())
    make.add_argument("--build-arg", action="append", default=[], metavar="NAME=VALUE")
    make.set_defaults(action=_build_image)

    for name, action, text in (
        ("stop-node", _stop_node, "kill a node, as a power cut would"),
        ("start-node", _start_node, "start a stopped node"),
    ):
        node = commands.add_parser(name, help=text)
        node.add_argument("node", type=int, choices=range(2, MAX_NODES + 1), help="node 1 is the control plane's")
        node.set_defaults(action=action)

    logs = commands.add_parser("logs", help="list the log files, or print those of one component")
    logs.add_argument("component", nargs="?", help="kubelet, apiserver, containerd, ...")
    logs.set_defaults(action=_logs)
    return parser


def _up(options: argparse.Namespace) -> None:
    wanted = Settings(
        nodes=options.nodes,
        gpus=options.gpus,
        node_grace=options.node_grace,
        toleration=options.toleration,
        api_qps=options.api_qps,
    )
    with runtime.exclusive():
        runtime.up(wanted)


def _down(_: argparse.Namespace) -> None:
    with runtime.exclusive():
        runtime.down()


def _status(_: argparse.Namespace) -> int:
    settings = Settings.load()
    if settings is None:
        print("the cluster is down")
        return 1
    serves = runtime.serves()
    print(f"API server  {'serves' if serves else 'does not answer'}")
    print(f"kubeconfig  {KUBECONFIG}\naudit log   {AUDIT_LOG}\nsettings    {settings}")
    well = serves
    items = Api(KUBECONFIG).call("/api/v1/nodes")["items"] if serves else []
    for item in items:
        ready = next(c["status"] for c in item["status"]["conditions"] if c["type"] == "Ready")
        node = Node(int(item["metadata"]["name"].removeprefix("node")))
        gpus = item["status"]["allocatable"].get(GPU_RESOURCE, "0")
        well = well and ready == "True" and runtime.is_ready(node)
        print(f"{node.name}       Ready={ready} GPUs={gpus} init={runtime.init_of(node)} logs={node.logs}")
    return 0 if well else 1


def _load(options: argparse.Namespace) -> None:
    with runtime.exclusive():
        for archive in options.archives:
            images.remember(archive)
        runtime.import_images()


def _build_image(options: argparse.Namespace) -> None:
    arguments = dict(argument.partition("=")[::2] for argument in options.build_arg)
    imagebuild.build_image(options.tag, options.file, options.context, arguments)


def _stop_node(options: argparse.Namespace) -> None:
    with runtime.exclusive():
        runtime.stop_node(Node(options.node))


def _start_node(options: argparse.Namespace) -> None:
    node = Node(options.node)
    with runtime.exclusive():
        settings = Settings.load()
        if settings is None or options.node > settings.nodes:
            raise ClusterError(f"the cluster has no {node.name}", f"run up --nodes {options.node}")
        if not runtime.is_ready(node):
            runtime.start_node(node, build.ensure_built())


def _logs(options: argparse.Namespace) -> None:
    for node in map(Node, range(1, MAX_NODES + 1)):
        for file in sorted(node.logs.glob(f"{options.component or '*'}.log")):
            if options.component is None:
                print(f"{file.stat().st_size:>10} {file}")
            else:
                sys.stdout.write(file.read_text(errors="replace"))
