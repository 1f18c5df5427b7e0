"""Images made of nothing but this machine's own files, as docker-archives."""

import hashlib
import io
import json
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from localcluster.layout import BUSYBOX_IMAGE, PAUSE_IMAGE, debian_architecture

EPOCH = "2021-01-01T00:00:00Z"


def write_archive(target: Path, tag: str, layer: Path, config: dict[str, Any]) -> None:
    """Write a docker-archive with one image of one layer; `layer` is a tar file, `config` its defaults."""
    with layer.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    image = json.dumps(
        {
            "architecture": debian_architecture(),
            "os": "linux",
            "created": EPOCH,
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
            "history": [{"created": EPOCH, "created_by": "localcluster"}],
        }
    ).encode()
    name = f"{hashlib.sha256(image).hexdigest()}.json"
    manifest = json.dumps([{"Config": name, "RepoTags": [tag], "Layers": ["layer.tar"]}]).encode()
    with tarfile.open(target, "w") as tar:
        tar.add(layer, "layer.tar")
        for member, data in ((name, image), ("manifest.json", manifest)):
            info = tarfile.TarInfo(member)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def image_of(archive: Path) -> tuple[list[str], str]:
    """The tags in a docker-archive and the digest of its (first) image's configuration."""
    with tarfile.open(archive) as tar:
        manifest = tar.extractfile("manifest.json")
        if manifest is None:
            raise KeyError("manifest.json")
        images = json.load(manifest)
    config = Path(images[0]["Config"]).name.removesuffix(".json")
    return [tag for image in images for tag in image["RepoTags"] or []], config


def write_pause(target: Path) -> None:
    """The program that holds a pod's namespaces: the machine's tiny init, which can just wait."""
    with tempfile.TemporaryDirectory() as root:
        shutil.copy("/usr/bin/catatonit", f"{root}/pause")
        _write_tree(target, PAUSE_IMAGE, Path(root), {"Entrypoint": ["/pause", "-P"]})


def write_busybox(target: Path) -> None:
    """A stand-in for the busybox image, of the machine's own busybox."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for folder in ("bin", "etc", "tmp"):
            (root / folder).mkdir()
        (root / "tmp").chmod(0o1777)
        shutil.copy("/bin/busybox", root / "bin/busybox")
        listed = subprocess.run(["/bin/busybox", "--list"], capture_output=True, text=True, check=True)
        for applet in set(listed.stdout.split()) - {"busybox"}:
            (root / "bin" / applet).symlink_to("busybox")
        (root / "etc/passwd").write_text("root:x:0:0:root:/:/bin/sh\n")
        _write_tree(target, BUSYBOX_IMAGE, root, {"Env": ["PATH=/bin"], "Cmd": ["sh"]})


def _write_tree(target: Path, tag: str, root: Path, config: dict[str, Any]) -> None:
    def owned_by_root(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = 0
        info.uname = info.gname = "root"
        info.mtime = 0
        return info

    with tempfile.NamedTemporaryFile(suffix=".tar") as layer:
        with tarfile.open(fileobj=layer, mode="w") as tar:
            for entry in sorted(root.iterdir()):
                tar.add(entry, arcname=entry.name, filter=owned_by_root)
        layer.flush()
        write_archive(target, tag, Path(layer.name), config)
