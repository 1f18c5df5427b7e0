"""Images known to the cluster, and how they get into the nodes' content stores.

There is no registry. An index in the cache remembers every loaded archive by its tag, so that a node that
starts later, or with an empty store, gets it too. Each store remembers which version of a tag it holds.
"""

import json
import re
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from localcluster import archives
from localcluster.layout import IMAGES, ClusterError, Node
from localcluster.progress import say
from localcluster.tools import locked, run

CTR = ("ctr", "-a", "/run/containerd/containerd.sock", "-n", "k8s.io")
IMPORT_TRIES = 3
_INDEX = IMAGES / "index.json"


def full_name(tag: str) -> str:
    """The tag as the kubelet writes it: with a registry, and Docker's own where none is named."""
    first = tag.partition("/")[0]
    if "/" in tag and re.search(r"[.:]|^localhost$", first):
        return tag
    return f"docker.io/{tag}" if "/" in tag else f"docker.io/library/{tag}"


def remember(archive: Path) -> list[str]:
    """Add a docker-archive to the index; returns its tags. Raises ClusterError when it is none."""
    try:
        tags, version = archives.image_of(archive)
    except (OSError, KeyError, ValueError, tarfile.TarError) as error:
        raise ClusterError(
            f"{archive} is not a docker-archive ({error})", "make one with `docker save` or `build-image`"
        ) from error
    # Images are built beside the start of a cluster, which remembers its own.
    with locked(_INDEX.with_suffix(".lock")):
        index = {
            **_read(_INDEX),
            **{full_name(tag): {"archive": str(archive.resolve()), "version": version} for tag in tags},
        }
        _write(_INDEX, index)
    return tags


def version_of(tag: str) -> str | None:
    """The version of the tag in the index, None when it isn't there or its archive is gone."""
    entry = _read(_INDEX).get(full_name(tag))
    return str(entry["version"]) if entry and Path(entry["archive"]).exists() else None


def import_missing(node: Node, inside: Sequence[str] = ()) -> None:
    """Import what the index holds and the node's store lacks; `inside` is the prefix to run in the node."""
    record = node.containerd_root / "imported.json"
    imported = _read(record)
    present = run(*inside, *CTR, "images", "list", "-q").split()
    for tag, entry in _read(_INDEX).items():
        if tag in present and imported.get(tag) == entry["version"]:
            continue
        if not Path(entry["archive"]).exists():
            say(f"{node.name}: {tag} can't be imported: {entry['archive']} is gone; load it again")
            continue
        _import(entry["archive"], inside)
        imported[tag] = entry["version"]
        _write(record, imported)


def _import(archive: str, inside: Sequence[str]) -> None:
    """Tries again when a layer was missing: the layers of a tag's last image are collected as soon as the tag moves,
    possibly while the new one is unpacked on top of them. The next try unpacks them again.
    """
    for tries_left in reversed(range(IMPORT_TRIES)):
        try:
            run(*inside, *CTR, "images", "import", "--snapshotter", "overlayfs", archive)
        except ClusterError as error:
            if not tries_left or "not found" not in error.problem:
                raise
        else:
            return


def _read(file: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(file.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return content


def _write(file: Path, content: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_suffix(".new")
    temporary.write_text(json.dumps(content, indent=1))
    temporary.rename(file)
