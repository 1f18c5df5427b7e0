"""What the bundled trainer adds to a pod: command, config file, code, output volume and security context."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfgpujob import names
from tfgpujob_contract.pod import CODE_DIR
from tfgpujob_contract.trainer_config import Code, GitCode, TrainerConfig
from tfgpujob_contract.variables import GitVariable

GROUP_ID = 65532
"""The trainer image's group: volumes that support it become writable for it."""
_GIT_KEYS = ("username", "password", "ca.crt")
_PROXIES = frozenset({"https_proxy", "http_proxy", "no_proxy", "all_proxy"})
_USER = frozenset({"runAsNonRoot", "runAsUser", "runAsGroup"})
_OF_ANY_NODE = frozenset({"cpu", "memory", "ephemeral-storage"})
_STOP_SECONDS = 120
"""Minimum time between SIGTERM and SIGKILL: a save of a large model must fit."""
_LONGEST_STOP_SECONDS = 3600
"""Maximum, because a report is untrusted, and a drain waits for its pods."""
_STEP_SECONDS = 60
"""The part of it that is left for the step that all workers stop after."""


def stop_seconds(save_seconds: int) -> int:
    """Time between SIGTERM and SIGKILL, by the duration of the last save: one may be in progress, the final one
    follows, and storage varies."""
    return max(_STOP_SECONDS, min(_STEP_SECONDS + 3 * save_seconds, _LONGEST_STOP_SECONDS))


def add_trainer(
    pod_spec: dict[str, Any],
    container: dict[str, Any],
    trainer: TrainerConfig,
    *,
    save_seconds: int = 0,
    image_volumes: bool = False,
) -> str:
    """Adds the trainer to the pod under construction; returns the content of its config file.

    `image_volumes`: whether images are mounted as volumes, or an init container copies what is in them."""
    container["command"] = ["tfgpu-train", "--config", f"{names.CONFIG_DIR}/{names.CONFIG_FILE}"]
    pod_spec.setdefault("terminationGracePeriodSeconds", stop_seconds(save_seconds))
    mount(pod_spec, container, _config_volume(), names.CONFIG_DIR, read_only=True)
    output = trainer.output
    mount(pod_spec, container, _output_volume(trainer), output.directory, sub_path=output.sub_path)
    if trainer.code is not None:
        _code(pod_spec, container, trainer.code, image_volumes)
    if trainer.models is not None:
        _from_image(
            pod_spec, container, trainer.models.image, names.MODELS_VOLUME, names.MODELS_DIR, as_volume=image_volumes
        )
    _restricted(pod_spec, container)
    return trainer.as_json


def mount(
    pod_spec: dict[str, Any],
    container: dict[str, Any],
    volume: dict[str, Any],
    path: str,
    *,
    read_only: bool = False,
    sub_path: str | None = None,
) -> None:
    """Adds the volume and mounts it at `path`, unless the template has a mount of its own there."""
    mounts: list[dict[str, Any]] = container.setdefault("volumeMounts", [])
    if any(str(m.get("mountPath", "")).rstrip("/") == path.rstrip("/") for m in mounts):
        return
    added = {"name": volume["name"], "mountPath": path, "readOnly": read_only, "subPath": sub_path}
    mounts.append({key: value for key, value in added.items() if value})
    pod_spec.setdefault("volumes", []).append(volume)


def _config_volume() -> dict[str, Any]:
    """The pod's own annotation as a file: no ConfigMap to own, and no right to write one."""
    field = f"metadata.annotations['{names.ANNOTATION_TRAINER_CONFIG}']"
    item = {"path": names.CONFIG_FILE, "fieldRef": {"fieldPath": field}}
    return {"name": names.CONFIG_VOLUME, "downwardAPI": {"items": [item]}}


def _output_volume(trainer: TrainerConfig) -> dict[str, Any]:
    if trainer.output.claim is None:
        return {"name": names.OUTPUT_VOLUME, "emptyDir": {}}
    return {"name": names.OUTPUT_VOLUME, "persistentVolumeClaim": {"claimName": trainer.output.claim}}


def _code(pod_spec: dict[str, Any], container: dict[str, Any], code: Code, image_volumes: bool) -> None:
    if code.image is not None:
        _from_image(pod_spec, container, code.image, names.CODE_VOLUME, CODE_DIR, as_volume=image_volumes)
        return
    volume: dict[str, Any] = {"name": names.CODE_VOLUME}
    sub_path = None
    if code.config_map is not None:
        volume["configMap"] = {"name": code.config_map.name}
        if code.config_map.paths is not None:
            items = [{"key": key, "path": path} for key, path in code.config_map.paths.items()]
            volume["configMap"]["items"] = items
    elif code.volume is not None:
        volume["persistentVolumeClaim"] = {"claimName": code.volume.claim_name, "readOnly": True}
        sub_path = code.volume.sub_path
    elif code.git is not None:
        volume["emptyDir"] = {}
        _add_init_container(pod_spec, _fetch_code(pod_spec, container, code.git))
    mount(pod_spec, container, volume, CODE_DIR, read_only=True, sub_path=sub_path)


def _from_image(
    pod_spec: dict[str, Any], container: dict[str, Any], image: str, volume: str, folder: str, *, as_volume: bool
) -> None:
    """Mounts this folder of the image at the same path."""
    if as_volume:
        source: dict[str, Any] = {"name": volume, "image": {"reference": image}}
        mount(pod_spec, container, source, folder, read_only=True, sub_path=folder.removeprefix("/"))
        return
    # Without -a: only root can set the times and the owner of the volume's own folder.
    copy = _filler(container, image, ["cp", "-R", f"{folder}/.", f"/{volume}"], volume)
    if "runAsUser" not in (pod_spec.get("securityContext") or {}):
        # Most images run as root by default, which the pod forbids.
        copy["securityContext"].setdefault("runAsUser", names.NON_ROOT_USER)
    _add_init_container(pod_spec, copy)
    mount(pod_spec, container, {"name": volume, "emptyDir": {}}, folder, read_only=True)


def _add_init_container(pod_spec: dict[str, Any], added: dict[str, Any]) -> None:
    pod_spec["initContainers"] = [*pod_spec.get("initContainers", []), added]


def _fetch_code(pod_spec: dict[str, Any], container: dict[str, Any], git: GitCode) -> dict[str, Any]:
    """An init container of the trainer's own image that fetches the commit. No other container sees the credentials."""
    values = {
        GitVariable.URL: git.url,
        GitVariable.COMMIT: git.revision,
        GitVariable.PATH: git.path,
        GitVariable.CREDENTIALS: names.GIT_DIR if git.secret_name else None,
        GitVariable.TARGET: f"/{names.CODE_VOLUME}",
    }
    own = [{"name": str(name), "value": value} for name, value in values.items() if value is not None]
    proxies = [variable for variable in container.get("env", ()) if str(variable.get("name")).lower() in _PROXIES]
    filler = {
        **_filler(container, container["image"], ["python", "-m", "tfgpujob_trainer.fetch_code"], names.CODE_VOLUME),
        "name": names.FETCH_CONTAINER,
        "env": [*proxies, *own],
    }
    if "imagePullPolicy" in container:
        filler["imagePullPolicy"] = container["imagePullPolicy"]
    if git.secret_name is not None:
        # Only these keys: the user's image runs here, and the Secret may be another account's token.
        items = [{"key": key, "path": key} for key in _GIT_KEYS]
        source = {"secretName": git.secret_name, "items": items, "optional": True}
        secret = {"name": names.GIT_VOLUME, "secret": source}
        mount(pod_spec, filler, secret, names.GIT_DIR, read_only=True)
    return filler


def _of_any_node(resources: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Requests and limits, without devices."""
    kept = {
        kind: {key: value for key, value in (resources.get(kind) or {}).items() if key in _OF_ANY_NODE}
        for kind in ("requests", "limits")
    }
    return {kind: amounts for kind, amounts in kept.items() if amounts}


def _filler(container: Mapping[str, Any], image: str, command: list[str], volume: str) -> dict[str, Any]:
    """An init container that fills the volume, mounted at `/NAME`, as the user of `container`."""
    user = {key: value for key, value in (container.get("securityContext") or {}).items() if key in _USER}
    # Otherwise a quota refuses the pod, or its QoS class is not Guaranteed. A pod needs the maximum, not the sum.
    resources = _of_any_node(container.get("resources") or {})
    return {
        "name": volume,
        "image": image,
        "command": command,
        "volumeMounts": [{"name": volume, "mountPath": f"/{volume}"}],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, **user},
        **({"resources": resources} if resources else {}),
    }


def _restricted(pod_spec: dict[str, Any], container: dict[str, Any]) -> None:
    """The Pod Security Standard "restricted", which suffices for our image. The template's own settings are kept."""
    pod_spec["securityContext"] = {
        "runAsNonRoot": True,
        "fsGroup": GROUP_ID,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
        **(pod_spec.get("securityContext") or {}),
    }
    container["securityContext"] = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        **(container.get("securityContext") or {}),
    }
