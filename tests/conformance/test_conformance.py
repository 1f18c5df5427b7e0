"""Every script on both servers; the answers must equal the transcript in the repository.

The transcripts were recorded from real servers: those in transcripts/ from 1.20, which the server in memory models, and
in a folder for each newer version what differs. A server between two of them answers each call like one of the two.
`python -m tests.conformance.record` records them again.
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
from tests.conformance.sides import MemorySide, RealSide, Side, Version
from tests.conformance.transcript import Transcript
from tests.harness import vtime

from tfgpujob.kube.cluster import KubeCluster
from tfgpujob.kube.errors import ApiError

TRANSCRIPTS = Path(__file__).parent / "transcripts"
OLDEST: Version = (1, 20)


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


async def tell_real(name: str, kubeconfig: Path) -> tuple[Version, list[dict[str, Any]]]:
    """The same on the cluster that the file names, and its version."""
    os.environ["KUBECONFIG"] = str(kubeconfig)
    async with await KubeCluster.connect() as cluster:
        side = RealSide(cluster, kubeconfig)
        side.install_crd()
        assert await side.until(side.serves_jobs), "the server does not serve TFGPUJobs"
        return side.version(), await tell(name, side)


def folder_of(version: Version) -> Path:
    return TRANSCRIPTS if version == OLDEST else TRANSCRIPTS / f"{version[0]}.{version[1]}"


def versions() -> list[Version]:
    """Those of which there are transcripts, the oldest first."""
    newer = (path.name.split(".") for path in TRANSCRIPTS.iterdir() if path.is_dir())
    return [OLDEST, *sorted((int(major), int(minor)) for major, minor in newer)]


def recorded(name: str, version: Version = OLDEST) -> list[dict[str, Any]]:
    """What a server that was recorded at this version told."""
    # For a newer server only differences are kept.
    have = [v for v in versions() if v <= version and (folder_of(v) / f"{name}.json").exists()]
    entries: list[dict[str, Any]] = json.loads((folder_of(have[-1]) / f"{name}.json").read_text())
    return entries


def expected(name: str, version: Version, told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a server of any version may have told instead of `told`: for each call, as the recorded server before it, or
    as the one after."""
    before = recorded(name, max((v for v in versions() if v <= version), default=OLDEST))
    after = recorded(name, min((v for v in versions() if v >= version), default=version))
    if len(before) != len(after) or len(told) != len(before):
        return before
    return [late if entry == late else early for entry, early, late in zip(told, before, after, strict=True)]


@pytest.mark.parametrize("name", SCRIPTS)
def test_memory_tells_it_as_recorded(name: str) -> None:
    assert vtime.run(tell(name, MemorySide())) == recorded(name)


@pytest.mark.cluster
@pytest.mark.parametrize("name", SCRIPTS)
def test_real_server_tells_it_as_recorded(name: str, kubeconfig: Path) -> None:
    version, told = asyncio.run(tell_real(name, kubeconfig))
    assert told == expected(name, version, told)


def test_every_transcript_has_its_script() -> None:
    assert {path.stem for path in TRANSCRIPTS.glob("*.json")} == set(SCRIPTS)
    assert {path.stem for path in TRANSCRIPTS.glob("*/*.json")} <= set(SCRIPTS)


def test_a_newer_servers_folder_has_only_what_it_tells_otherwise() -> None:
    before = OLDEST
    for version in versions()[1:]:
        for path in folder_of(version).glob("*.json"):
            assert recorded(path.stem, version) != recorded(path.stem, before)
        before = version


@pytest.mark.parametrize("version", [(1, 19), (1, 20), (1, 27), (1, 36), (1, 99)])
def test_a_server_is_held_to_its_neighbours(version: Version) -> None:
    """The name of a service that begins with a digit, which 1.36 takes."""
    name, call = "names_and_labels", "a service with a digit"
    for told_as in (OLDEST, (1, 36)):
        told = recorded(name, told_as)
        allowed = (version >= (1, 36)) == (told_as == (1, 36)) or OLDEST < version < (1, 36)
        assert (told == expected(name, version, told)) == allowed
        broken = [{**entry, "is": "something else"} if entry["call"] == call else entry for entry in told]
        assert broken != expected(name, version, broken)
