"""Every script on both servers; what each sees must equal the transcript kept in the repository.

The transcripts were taken from a real server. `python -m tests.conformance.record` takes them again.
"""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.scripts import SCRIPTS
from tests.conformance.sides import MemorySide, RealSide, Side
from tests.conformance.transcript import Transcript
from tests.harness import vtime

from tfgpujob.kube.cluster import KubeCluster
from tfgpujob.kube.errors import ApiError

TRANSCRIPTS = Path(__file__).parent / "transcripts"


async def tell(name: str, side: Side) -> list[dict[str, Any]]:
    """The transcript of one script, in a namespace of its own."""
    namespace = f"conformance-{uuid.uuid4().hex[:8]}"
    side.create("Namespace", "", {"metadata": {"name": namespace}})
    told = Transcript(namespace)
    try:
        await SCRIPTS[name](side, told, namespace)
    finally:
        with suppress(ApiError):
            side.delete("Namespace", "", namespace)
    return told.entries


async def tell_real(name: str, kubeconfig: Path) -> list[dict[str, Any]]:
    """The same on the cluster that the file names."""
    os.environ["KUBECONFIG"] = str(kubeconfig)
    async with await KubeCluster.connect() as cluster:
        side = RealSide(cluster, kubeconfig)
        side.install_crd()
        assert await side.until(side.serves_jobs), "the server does not serve TFGPUJobs"
        return await tell(name, side)


def recorded(name: str) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads((TRANSCRIPTS / f"{name}.json").read_text())
    return entries


@pytest.mark.parametrize("name", SCRIPTS)
def test_memory_tells_it_as_recorded(name: str) -> None:
    assert vtime.run(tell(name, MemorySide())) == recorded(name)


@pytest.mark.cluster
@pytest.mark.parametrize("name", SCRIPTS)
def test_real_server_tells_it_as_recorded(name: str, kubeconfig: Path) -> None:
    assert asyncio.run(tell_real(name, kubeconfig)) == recorded(name)


def test_every_transcript_has_its_script() -> None:
    assert {path.stem for path in TRANSCRIPTS.glob("*.json")} == set(SCRIPTS)
