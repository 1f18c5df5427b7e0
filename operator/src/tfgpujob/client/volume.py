"""The volume behind a directory of a job's pod, so that another pod can read it."""

from __future__ import annotations

from collections.abc import Mapping

from tfgpujob import names
from tfgpujob.client.errors import TensorBoardError
from tfgpujob.core.observed.snapshot import Object
from tfgpujob.core.pods.expansion import environment, expanded


def volume_of(writer: Object, directory: str, *, bundled: bool, copy: str) -> tuple[Object, Object]:
    """The mount of the pod `writer` that contains the directory, read-only, and its volume.

    `bundled`: the pod runs our trainer; `copy`: what `kubectl cp` would copy it to. Raises TensorBoardError for a
    directory that no other pod can read.
    """
    container, metadata = main_container(writer), writer["metadata"]
    mount = _mount_at(container, directory)
    volume = _volume(writer, mount)
    pod = f"{metadata['namespace']}/{metadata['name']}"
    copy = f"kubectl cp -c {names.CONTAINER} {pod}:{directory} {copy}"
    if "emptyDir" in volume:
        claim = "name a claim in spec.trainer.output.claim" if bundled else f"mount a claim at {directory}"
        problem = f"{directory} is kept inside the pod {metadata['name']}, where no other pod can read it"
        raise TensorBoardError(problem, f"{claim}; while the pod is there: {copy}")
    try:
        path = _sub_path(mount, environment(writer, container))
    except KeyError as unknown:
        problem = f"{directory} is below a subPathExpr with {unknown.args[0]}, whose value only the node knows"
        raise TensorBoardError(problem, f"use one that has a value; while the pod is there: {copy}") from unknown
    found = {"name": mount["name"], "mountPath": mount["mountPath"], "subPath": path, "readOnly": True}
    return {key: value for key, value in found.items() if value}, volume


def main_container(pod: Object) -> Object:
    """The container that trains."""
    found: Object = next(c for c in pod["spec"]["containers"] if c["name"] == names.CONTAINER)
    return found


def _mount_at(container: Object, directory: str) -> Object:
    mounts: list[Object] = [
        mount
        for mount in container.get("volumeMounts") or ()
        if f"{directory}/".startswith(f"{mount['mountPath'].rstrip('/')}/")
    ]
    return max(mounts, key=lambda mount: len(mount["mountPath"]), default={"name": ""})


def _volume(writer: Object, mount: Object) -> Object:
    volumes = {volume["name"]: volume for volume in writer["spec"].get("volumes") or ()}
    volume: Object = volumes.get(mount["name"], {"emptyDir": {}})
    if "ephemeral" in volume:
        # An ephemeral volume of another pod would be another, empty one. Its claim exists as long as its pod does.
        claim = f"{writer['metadata']['name']}-{volume['name']}"
        return {"name": volume["name"], "persistentVolumeClaim": {"claimName": claim}}
    return volume


def _sub_path(mount: Object, variables: Mapping[str, str]) -> str:
    """Raises KeyError with the name of a variable that is not known."""
    if "subPathExpr" in mount:
        return expanded(mount["subPathExpr"], variables.__getitem__)
    return str(mount.get("subPath", ""))
