"""A job as bytes of limited size, and back: what is kept, what never is."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.unit.ui.hostile import HOSTILE, poisoned
from tests.unit.ui.planted import NOW, condition, curves, job

from tfgpujob import names
from tfgpujob.core.observed.snapshot import Object, Pod, Termination
from tfgpujob.core.observed.trim import trim_job, trim_pod
from tfgpujob.history.records import (
    MAX_BYTES,
    MAX_CURVES,
    MOST_LOGS,
    Last,
    freeze,
    freeze_curves,
    thaw,
    thaw_curves,
)

FAILED = {"phase": "Failed", "conditions": [condition("Failed", "True", "ReplicaFailed", "worker-1 failed.", 5)]}


def stored(found: Object) -> Object:
    """As the operator's cache has it."""
    return trim_job({**found, "metadata": {**found["metadata"], "resourceVersion": "1"}})


def ended(name: str, code: int, message: str) -> Pod:
    bare = {"metadata": {"name": name, "labels": {}}, "spec": {}, "status": {}}
    return replace(trim_pod(bare), termination=Termination(code, None, "Error", message, "2026-03-04T15:00:00Z"))


def kept(found: Object, *pods: Pod) -> Any:
    record = freeze(Last(stored(found), pods, NOW))
    return thaw(record.content, record.seen)


def test_a_job_comes_back_with_the_time_when_it_was_last_seen() -> None:
    planted = job("resnet50", FAILED)
    found = kept({**planted, "metadata": {**planted["metadata"], "deletionTimestamp": "2026-03-04T15:19:00Z"}}).job
    assert found["metadata"] == {**planted["metadata"], "resourceVersion": "1"}
    assert found["spec"] == planted["spec"]
    assert found["status"] == FAILED
    assert found[names.GONE] == "2026-03-04T15:20:00Z"
    record = freeze(Last(stored(planted), (), NOW))
    assert (record.uid, record.namespace, record.name) == ("uid-resnet50", "research", "resnet50")
    assert datetime.fromtimestamp(record.seen, UTC) == NOW


@pytest.mark.parametrize("more", [{}, {"note": "x" * 5000}], ids=["small", "packed"])
def test_no_value_of_an_environment_variable_is_kept(more: Any) -> None:
    planted = copy.deepcopy({**job("secret", FAILED, **more)})
    variables = [
        {"name": "PASSWORD", "value": "hunter2"},
        {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        "hunter2",
    ]
    pod: dict[str, Any] = {"containers": [{"name": "a", "env": variables}]}
    pod["initContainers"] = [{"name": "b", "env": variables[:2]}]
    planted["spec"]["replicaSpecs"]["worker"]["template"] = {"spec": pod}
    pod["ephemeralContainers"] = [{"name": "c", "env": {"value": "hunter2"}}]
    found = kept(planted).job["spec"]["replicaSpecs"]["worker"]["template"]["spec"]
    assert found["containers"][0]["env"][:2] == [{"name": "PASSWORD", "value": "(not kept)"}, variables[1]]
    assert "hunter2" not in json.dumps([found["initContainers"], found["ephemeralContainers"]])
    assert "hunter2" not in json.dumps(found["containers"][0]["env"][:2])


def test_the_last_lines_of_replicas_are_kept_of_failed_ones_first() -> None:
    trainers = json.dumps({"code": 1, "cause": "Exception", "lastLines": ["a", "b"]})
    pods = [ended(f"ok-{i}", 0, "done") for i in range(MOST_LOGS)]
    logs = kept(job("x", FAILED), *pods, ended("bad-0", 1, trainers), ended("bad-1", 2, "Traceback\nKeyError")).logs
    assert [*logs][:2] == ["bad-0", "bad-1"]
    assert len(logs) == MOST_LOGS
    assert (logs["bad-0"], logs["bad-1"]) == (["a", "b"], ["Traceback", "KeyError"])


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text[:20]))
def test_hostile_jobs_are_kept_in_limited_size(text: str) -> None:
    planted = copy.deepcopy({**job("x", {})})
    planted["spec"]["image"] = text
    planted["status"] = {**poisoned(FAILED, text), "lastFailure": {"message": text}, text[:100]: text}
    pods = [ended(f"p-{i}", 1, text[:4096]) for i in range(50)]
    record = freeze(Last({**planted, "metadata": {**planted["metadata"], "name": text}}, pods, NOW))
    assert len(record.content) <= MAX_BYTES
    found = thaw(record.content, record.seen)
    assert found.job["status"]["phase"] == "Failed"
    assert "\0" not in record.name
    record.name.encode()


def test_of_a_job_that_is_too_large_the_outcome_is_kept() -> None:
    status = {**FAILED, "lastFailure": {"message": "why" * 30_000}}
    large = job("large", status, params={"x": "y" * 200_000})
    found = kept(large).job
    assert found["status"] == status
    assert found["spec"] == {"strategy": "MultiWorkerMirrored", "image": large["spec"]["image"]}
    huge = kept(job("huge", {**FAILED, "replicaStatuses": {str(i): "y" * 1000 for i in range(500)}})).job
    assert huge["status"] == FAILED


def test_curves_are_checked_when_they_are_read() -> None:
    answer = {"train": {"names": ["loss"], "points": [[s, v] for s, v in curves()["loss"][:256]]}}
    good = json.dumps({**answer, "validation": {"names": [], "points": []}}).encode()
    assert thaw_curves(freeze_curves(good))["loss"][0] == tuple(curves()["loss"][0])
    for bad in (b"", b"{", b"null", b"x" * (2 * MAX_CURVES)):
        assert thaw_curves(freeze_curves(bad)) == {}
    assert thaw_curves(b"no zlib") == {}


@pytest.mark.parametrize("content", [b"", b"no zlib", freeze_curves(b"[]"), freeze_curves(b'{"job": 1}')])
def test_what_is_no_record_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="no record"):
        thaw(content, 0)
