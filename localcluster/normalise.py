"""Removes from images what differs between builds.

Not in archives.py: that is part of the recipe that identifies the cluster's programs, and a change of it compiles them
again.
"""

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import IO

from localcluster.archives import EPOCH


def normalise(source: Path, target: Path, tag: str) -> None:
    """The docker-archive with the same layers, without the ids and host names of its build, and with this tag alone."""
    with tarfile.open(source) as built, tarfile.open(target, "w") as tar:
        [described] = json.load(_member(built, "manifest.json"))
        config = json.load(_member(built, described["Config"]))
        for layer in described["Layers"]:
            _add(tar, layer, built.getmember(layer).size, _member(built, layer))
        config["config"].pop("Hostname", None)
        steps = [{key: step[key] for key in ("created_by", "empty_layer") if key in step} for step in config["history"]]
        image = {
            **{key: config[key] for key in ("architecture", "os", "config", "rootfs")},
            "created": EPOCH,
            "history": [{"created": EPOCH, **step} for step in steps],
        }
        data = json.dumps(image, sort_keys=True).encode()
        name = f"{hashlib.sha256(data).hexdigest()}.json"
        manifest = json.dumps([{"Config": name, "RepoTags": [tag], "Layers": described["Layers"]}]).encode()
        _add(tar, name, len(data), io.BytesIO(data))
        _add(tar, "manifest.json", len(manifest), io.BytesIO(manifest))


def _member(tar: tarfile.TarFile, name: str) -> IO[bytes]:
    found = tar.extractfile(name)
    if found is None:
        raise KeyError(name)
    return found


def _add(tar: tarfile.TarFile, name: str, size: int, content: IO[bytes]) -> None:
    info = tarfile.TarInfo(name)
    info.size = size
    tar.addfile(info, content)
