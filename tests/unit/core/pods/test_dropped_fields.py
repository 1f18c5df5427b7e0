"""core/pods/dropped_fields.py: what an API server has dropped without a word."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from tfgpujob.core.pods.dropped_fields import dropped_fields

SENT: dict[str, Any] = {
    "nodeSelector": {"gpu": "a100"},
    "hostNetwork": False,
    "initContainers": [],
    "containers": [
        {"name": "tensorflow", "image": "i", "command": ["a", "b"], "env": [{"name": "A", "value": ""}]},
        {"name": "side", "image": "j"},
    ],
    "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
}


def made() -> dict[str, Any]:
    """As an API server answers: empty values left out, defaults and what webhooks like added, order not kept."""
    pod = deepcopy(SENT)
    del pod["hostNetwork"], pod["initContainers"], pod["containers"][0]["env"][0]["value"]
    pod["schedulerName"] = "default-scheduler"
    pod["containers"].insert(0, {"name": "injected", "image": "k", "command": ["x"]})
    pod["containers"][1]["volumeMounts"] = [{"name": "token", "mountPath": "/t"}]
    pod["containers"][1]["image"] = "mirror/i"
    return pod


def test_what_servers_and_webhooks_add_change_and_leave_empty_is_no_loss() -> None:
    assert dropped_fields(SENT, made(), "spec") == ()


@pytest.mark.parametrize(
    ("where", "key", "path"),
    [
        ([], "nodeSelecter", "spec.nodeSelecter"),
        (["containers", 0], "comand", "spec.containers[0].comand"),
        (["containers", 0, "env", 0], "valu", "spec.containers[0].env[0].valu"),
        (["volumes", 0, "emptyDir"], "sizeLimt", "spec.volumes[0].emptyDir.sizeLimt"),
    ],
)
def test_a_field_that_did_not_come_back_is_named_by_its_path(where: list[Any], key: str, path: str) -> None:
    sent = deepcopy(SENT)
    target: Any = sent
    for step in where:
        target = target[step]
    target[key] = "x"
    assert dropped_fields(sent, made(), "spec") == (path,)
