"""What a machine must offer, each with the fix for its lack. Checked before anything is built or started."""

import ipaddress
import json
import os
import shutil
import subprocess
from pathlib import Path

from localcluster import apt
from localcluster.layout import (
    CACHE,
    HOST_LINK,
    NODE_NETWORK,
    POD_NETWORK,
    RUN,
    SERVICE_NETWORK,
    ClusterError,
)
from localcluster.progress import run_steps
from localcluster.tools import succeeds

FREE_GIB = 4
CGROUPS = ("cpu", "cpuacct", "cpuset", "devices", "freezer", "memory", "pids")
OTHER = "use another cluster: TFGPU_CLUSTER=kind or existing (docs/local-cluster.md)"


def check_root() -> None:
    """Raises ClusterError for a user who can't make namespaces, mounts and links."""
    if os.geteuid() != 0:
        raise ClusterError("the local cluster needs root", f"run the command as root, or {OTHER}")


def check_machine() -> None:
    """Raises ClusterError for the first thing that the machine can't do."""
    check_root()
    if not apt.available():
        raise ClusterError(f"the local cluster is built of packages of Debian 12 ({apt.RELEASE})", OTHER)
    CACHE.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(CACHE).free / 2**30
    if free < FREE_GIB:
        raise ClusterError(
            f"{CACHE} has {free:.1f} GiB free and {FREE_GIB} are needed",
            "free some, or set XDG_CACHE_HOME to a folder on a larger disk",
        )
    if CACHE.is_relative_to("/run") or CACHE.is_relative_to("/var/log"):
        raise ClusterError(
            f"the nodes hide {CACHE} from themselves", "set XDG_CACHE_HOME to a folder not below /run or /var/log"
        )
    missing = [name for name in CGROUPS if not Path("/sys/fs/cgroup", name).is_dir()]
    if missing:
        raise ClusterError(
            f"this machine has no version 1 cgroup hierarchy for {', '.join(missing)} in /sys/fs/cgroup", OTHER
        )


def install_packages() -> None:
    """Install the Debian packages that are missing."""
    missing = sorted(set(apt.PACKAGES) - apt.installed(apt.PACKAGES))
    if missing:
        log = CACHE / "apt.log"
        run_steps([(f"install {len(missing)} Debian packages", lambda: apt.install(missing, log))])


def check_kernel() -> None:
    """Raises ClusterError when namespaces or overlay mounts are refused, or an address is in use."""
    if not succeeds("unshare", "--net", "--mount", "--pid", "--fork", "true"):
        raise ClusterError(
            "this machine does not let root make network, mount and PID namespaces",
            f"run in a virtual machine or a privileged container, or {OTHER}",
        )
    _check_overlay()
    _check_addresses()


def _check_overlay() -> None:
    RUN.mkdir(parents=True, exist_ok=True)
    folders = [RUN / "overlay-check" / name for name in ("lower", "upper", "work", "merged")]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    lower, upper, work, merged = folders
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    mounts = succeeds("unshare", "--mount", "mount", "-t", "overlay", "overlay", "-o", options, merged)
    shutil.rmtree(RUN / "overlay-check")
    if not mounts:
        raise ClusterError(
            f"overlay file systems can't be mounted on {CACHE}",
            "set XDG_CACHE_HOME to a folder on ext4 or xfs (not itself an overlay)",
        )


def _check_addresses() -> None:
    listed = subprocess.run(["ip", "-json", "-4", "route"], capture_output=True, text=True, check=True)
    for route in json.loads(listed.stdout or "[]"):
        if route["dst"] == "default" or route.get("dev") == HOST_LINK:
            continue
        for ours in (NODE_NETWORK, POD_NETWORK, SERVICE_NETWORK):
            if ipaddress.ip_network(route["dst"], strict=False).overlaps(ipaddress.ip_network(ours)):
                raise ClusterError(
                    f"the network {ours} of the local cluster is in use here ({route['dst']} on {route['dev']})",
                    f"take that interface down, or {OTHER}",
                )
