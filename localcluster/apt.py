"""Debian packages, binary and source, from the machine's own apt sources. Nothing of apt's own is changed,
except that missing packages are installed."""

import dataclasses
import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from localcluster.layout import ClusterError
from localcluster.tools import run

RELEASE = "bookworm"
PACKAGES = (
    "buildah", "busybox-static", "catatonit", "conntrack", "containerd", "containernetworking-plugins",
    "debootstrap", "etcd-server", "golang-1.19-go", "iproute2", "iptables", "openssl", "procps", "runc",
    "util-linux",
)  # fmt: skip
NONINTERACTIVE = {"DEBIAN_FRONTEND": "noninteractive"}


@dataclasses.dataclass(frozen=True)
class Source:
    """One place that packages of our release come from."""

    uri: str
    components: str
    signed_by: str = ""


def parse_deb822(text: str) -> Iterator[Source]:
    """The sources of our release in a `.sources` file."""
    for stanza in re.split(r"\n\s*\n", "\n".join(x for x in text.splitlines() if not x.startswith("#"))):
        fields = dict(re.findall(r"^([\w-]+):[ \t]*(.*)$", stanza, re.MULTILINE))
        wanted = RELEASE in fields.get("Suites", "").split() and "deb" in fields.get("Types", "").split()
        if wanted and fields.get("Enabled", "yes") != "no":
            for uri in fields["URIs"].split():
                yield Source(uri, fields.get("Components", "main"), fields.get("Signed-By", ""))


def parse_one_line(text: str) -> Iterator[Source]:
    """The sources of our release in a `.list` file."""
    for match in re.finditer(r"^deb\s+(?:\[(.*?)\]\s+)?(\S+)\s+(\S+)\s+(.+)$", text, re.MULTILINE):
        options, uri, suite, components = match.groups()
        if suite == RELEASE:
            signed = re.search(r"signed-by=(\S+)", options or "")
            yield Source(uri, components, signed.group(1) if signed else "")


def sources(folder: Path = Path("/etc/apt")) -> list[Source]:
    """Where the machine gets packages of our release from. Raises ClusterError when it gets none."""
    found: list[Source] = []
    for file in sorted([folder / "sources.list", *(folder / "sources.list.d").glob("*")]):
        if file.suffix == ".sources":
            found += parse_deb822(file.read_text())
        elif file.suffix == ".list" and file.exists():
            found += parse_one_line(file.read_text())
    if not found:
        raise ClusterError(
            f"no apt source of this machine offers Debian {RELEASE}",
            f"add one to {folder}, or use another cluster: TFGPU_CLUSTER=kind or existing (docs/local-cluster.md)",
        )
    return found


def installed(packages: Iterable[str]) -> set[str]:
    """Which of these packages are installed."""
    query = ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *packages]
    output = subprocess.run(query, capture_output=True, text=True, check=False).stdout
    return {line.split()[0] for line in output.splitlines() if line.endswith(" installed")}


def version_of(package: str) -> str:
    """The installed version of a package."""
    return run("dpkg-query", "-W", "-f", "${Version}", package)


def install(packages: Sequence[str], log: Path) -> None:
    """Install packages, with fresh lists. Raises ClusterError when apt can't."""
    run("apt-get", "update", "-q", log=log)
    run("apt-get", "install", "-y", "-q", "--no-install-recommends", *packages, log=log, env=NONINTERACTIVE)


def download_binary(package: str, folder: Path, log: Path) -> Path:
    """Unpack a binary package into a folder of its own below `folder`, without installing it."""
    run("apt-get", "download", "-q", "-o", "APT::Sandbox::User=root", package, cwd=folder, log=log)
    unpacked = folder / package
    run("dpkg-deb", "-x", next(folder.glob(f"{package}_*.deb")), unpacked)
    return unpacked


def download_source(package: str, version: str, folder: Path, log: Path) -> Path:
    """Fetch a source package of exactly this version; returns its upstream archive.

    The lists of source packages are kept in `folder`, so that the machine's own apt stays as it was.
    """
    lists = folder / "apt"
    (lists / "partial").mkdir(parents=True)
    listed = folder / "deb-src.list"
    listed.write_text("".join(f"{_source_line(source)}\n" for source in sources()))
    options = ["-q", "-o", f"Dir::Etc::sourcelist={listed}", "-o", "Dir::Etc::sourceparts=/dev/null",
               "-o", f"Dir::State::lists={lists}", "-o", "APT::Sandbox::User=root"]  # fmt: skip
    run("apt-get", *options, "update", log=log)
    run("apt-get", *options, "source", "--download-only", f"{package}={version}", cwd=folder, log=log)
    return next(folder.glob(f"{package}_*.orig.tar.gz"))


def _source_line(source: Source) -> str:
    signed = f"[signed-by={source.signed_by}] " if source.signed_by else ""
    return f"deb-src {signed}{source.uri} {RELEASE} {source.components}"


def available() -> bool:
    """Whether this is a Debian of our release, and apt is there."""
    release = Path("/etc/os-release")
    named = release.exists() and f"VERSION_CODENAME={RELEASE}" in release.read_text()
    return named and any(Path(p, "apt-get").exists() for p in os.environ["PATH"].split(":"))
