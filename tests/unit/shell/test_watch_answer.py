"""What kopf reads of an API server's answers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.harness.poison import ODD, POISONS

from tfgpujob.shell.watch_answer import _listed_namespace, _plain


def event(kind: str, **fields: Any) -> str:
    found = {"metadata": {"name": "a", "namespace": "b", "resourceVersion": "7", "managedFields": [1]}, **fields}
    return json.dumps({"type": kind, "object": found})


@pytest.mark.parametrize("name", [*POISONS, *ODD])
def test_pythons_decoder_reads_every_event(name: str) -> None:
    line = event("ADDED", spec={"x": "?"}).replace('"?"', (POISONS | ODD)[name]).encode("latin-1")
    found = json.loads(_plain(line))
    assert found["object"]["metadata"] == {"name": "a", "namespace": "b", "resourceVersion": "7"}
    assert ("unreadable" in found["object"]) == (name in POISONS)


def test_a_bookmark_keeps_its_version() -> None:
    line = b'{"type": "BOOKMARK", "object": {"kind": "TFGPUJob", "metadata": {"resourceVersion": "9"}}}'
    assert json.loads(_plain(line))["object"]["metadata"]["resourceVersion"] == "9"


def test_upon_any_error_kopf_lists_again_instead_of_ending() -> None:
    assert json.loads(_plain(b'{"type": "ERROR", "object": {"code": 500, "message": "etcd"}}')) == {
        "type": "ERROR",
        "object": {"code": 410, "message": "etcd"},
    }


@pytest.mark.parametrize("line", [b"", b"[]", b"no json", b'{"type": "ADDED"}', b'{"type": "ADDED", "object": 1}'])
def test_what_is_no_event_is_left_out(line: bytes) -> None:
    assert _plain(line) == b""


@pytest.mark.parametrize(
    ("path", "namespace"),
    [
        ("/apis/tfgpu.dev/v1/tfgpujobs", ""),
        ("/apis/tfgpu.dev/v1/namespaces/team/tfgpujobs", "team"),
        ("/apis/tfgpu.dev/v1", None),
        ("/apis", None),
        ("/", None),
    ],
)
def test_which_requests_list_jobs(path: str, namespace: str | None) -> None:
    assert _listed_namespace(path) == namespace
