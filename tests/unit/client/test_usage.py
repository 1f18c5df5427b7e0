"""What `top NAME` sends to a pod."""

from __future__ import annotations

from typing import Any, cast

import pytest
from tests.unit.core import make

from tfgpujob.client.usage import _get_progress
from tfgpujob.kube.connection import Connection


@pytest.mark.parametrize(("token", "headers"), [("0af3", {"X-Tfgpu-Token": "0af3"}), ("", None)])
async def test_a_pod_is_shown_its_own_token_through_the_proxy(token: str, headers: dict[str, str] | None) -> None:
    sent: list[dict[str, Any]] = []

    class Recorded:
        async def send(self, method: str, path: str, **options: Any) -> dict[str, Any]:
            sent.append({"path": path, **options})
            return {"phase": "training", "step": 3}

    pod = make.pod("train-worker-0", progress_token=token)
    assert await _get_progress(cast("Connection", Recorded()), "ns", pod) is not None
    (request,) = sent
    assert request["path"] == "/api/v1/namespaces/ns/pods/train-worker-0:8080/proxy/progress"
    assert request["headers"] == headers
