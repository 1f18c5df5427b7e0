"""N4: what jobs that are accepted take in memory, each by itself and all together."""

from __future__ import annotations

import gc
import json
import tracemalloc
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.harness import sizes
from tests.harness.known import snapshot_of
from tests.unit.core import make

from tfgpujob.core.observed import packed, parsed, progress_report
from tfgpujob.core.observed.snapshot import Agreed, Kind, LeaderAnswer, Object, WhoTrains
from tfgpujob.core.observed.trim import trim_job, trim_pod
from tfgpujob.core.reconcile import reconcile
from tfgpujob.kube.decoding import decoded
from tfgpujob.names import PREBUILT_WORKLOAD
from tfgpujob.shell import budget
from tfgpujob.shell.store import Key, Store

pytestmark = pytest.mark.slow

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def job(shape: str, number: int, namespace: str = "a", entries: int = 0) -> Object:
    template = sizes.TEMPLATES[shape]
    whole = sizes.job_of(template(entries), 1, suspend=True) if entries else sizes.largest(template, 1, suspend=True)
    metadata = {**whole["metadata"], "name": f"j{number}", "namespace": namespace, "uid": f"{namespace}-{number}"}
    return {**whole, "metadata": metadata}


@pytest.mark.parametrize(("shape", "entries"), [("node selector", 19_900), ("affinity terms", 4_900)])
def test_a_readable_job_takes_no_more_than_it_sends(shape: str, entries: int) -> None:
    """19,900 keys in 300 KiB took 3.3 MiB, 9,900 small objects in 106 KiB 2.6 MiB."""
    sent = [json.dumps(job(shape, number, entries=entries)).encode() for number in range(5)]
    held = Store()
    held.put(Kind.JOB, decoded(json.dumps(job(shape, 9, entries=entries)).encode()))
    gc.collect()
    tracemalloc.start()
    for payload in sent:
        held.put(Kind.JOB, decoded(payload))
    gc.collect()
    taken = tracemalloc.get_traced_memory()[0] / len(sent)
    tracemalloc.stop()
    assert taken < len(sent[0]) + 8192


@pytest.mark.parametrize("shape", ["env", "node selector", "annotations"])
def test_what_is_packed_is_read_as_it_was(shape: str) -> None:
    store = Store()
    whole = job(shape, 1)
    store.put(Kind.JOB, whole)
    kept = snapshot_of(store, Key("a", "j1")).job
    assert packed.spec_of(kept) == whole["spec"]
    assert kept["spec"] == {"strategy": "MultiWorkerMirrored", "runPolicy": {"suspend": True}}
    assert isinstance(parsed.parsed_spec(kept, make.CONFIG), type(parsed.parsed_spec(whole, make.CONFIG)))


def test_parsed_specs_are_kept_up_to_a_size() -> None:
    parsed._results.clear()
    store = Store()
    for number in range(20):
        store.put(Kind.JOB, job("node selector", number, entries=19_000))
        snapshot = snapshot_of(store, Key("a", f"j{number}"))
        reconcile(snapshot, NOW, make.CONFIG)
    assert 1 <= len(parsed._results) <= 4
    parsed._results.clear()


def accepted(store: Store, number: int, namespace: str = "a") -> str:
    found = snapshot_of(store, Key(namespace, f"j{number}"))
    outcome = reconcile(found, NOW, make.CONFIG)
    conditions: list[dict[str, Any]] = (outcome.status or {})["conditions"]
    said = {c["type"]: c for c in conditions}
    assert ("Quarantined" in said) == bool(found.quarantined) == (f"{namespace}/j{number}: " in str(named(store)))
    assert "Accepted" not in said or said["Accepted"]["status"] == "True"
    return str(said["Quarantined"]["message"]) if found.quarantined else ""


def named(store: Store) -> list[str]:
    """What /readyz says of those that are set aside. They are not among those that can't be read."""
    assert not store.unreadable
    return store.quarantined.lines()


@pytest.mark.parametrize("entries", [1000, 30])
def test_a_namespace_that_has_used_its_budget_is_told_so_and_harms_no_other(
    entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Specs below 1 KiB were not counted: 10,000 jobs of 900 bytes took 95 MiB."""
    one = len(packed.packed(job("env", 0, entries=entries))[packed.PACKED])
    monkeypatch.setattr(budget, "FREE_BYTES", one)
    monkeypatch.setattr(budget, "NAMESPACE_BYTES", 3 * one)
    monkeypatch.setattr(budget, "ALL_BYTES", 4 * one)
    store = Store()
    jobs = [job("env", number, entries=entries) for number in range(5)]
    for each in jobs:
        store.put(Kind.JOB, each)
    assert [accepted(store, number) == "" for number in range(5)] == [True, True, True, False, False]
    assert accepted(store, 4).startswith("spec: the jobs of namespace a have more than")
    assert "delete jobs that have finished" in accepted(store, 4)
    for namespace in ("b", "c"):
        store.put(Kind.JOB, job("env", 1, namespace, entries=entries))
        assert accepted(store, 1, namespace) == "", "what is free is had whatever the others take"
    store.put(Kind.JOB, job("env", 2, "b", entries=entries))
    assert accepted(store, 2, "b").startswith("spec: all jobs have more than")

    assert store.put(Kind.JOB, jobs[4]) is None, "there is no room yet"
    for gone in (0, 1):
        store.remove(Kind.JOB, "a", f"j{gone}", f"a-{gone}")
    assert store.put(Kind.JOB, jobs[4]) is not None, "the same version, from the next list"
    assert accepted(store, 4) == ""
    store.drop("a")
    store.drop("b")
    store.drop("c")
    assert named(store) == []
    assert store._budget._used.total() == 0


@pytest.mark.parametrize("by_drop", [False, True])
def test_messages_of_pods_are_cut_beyond_the_budget_and_counted_while_their_pods_exist(
    by_drop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each took up to 16 KiB: one character beyond 16 bits makes all of a text four bytes wide."""
    monkeypatch.setattr(budget, "FREE_BYTES", 0)
    monkeypatch.setattr(budget, "NAMESPACE_BYTES", 17_000)
    store = Store()
    said = {
        0: "x" * 4000 + "\U0001f600",
        1: "x" * 4000 + "\U0001f600",
        2: "first" + "y" * 3000 + "last",
        3: '{"cause": ' + "z" * 4000,
    }
    for index, message in said.items():
        ended = {"exitCode": 1, "message": message}
        container = {"name": "tensorflow", "state": {"terminated": ended}}
        store.put(Kind.POD, pod_of(index, {"phase": "Failed", "message": message, "containerStatuses": [container]}))
    kept = [(pod.status_message, pod.termination.message) for pod in store.pods(Key("a", "j")) if pod.termination]
    assert [len(text) for text in kept[0]] == [4001, 4001]
    assert [[len(text) for text in texts] for texts in kept[1:]] == [[256, 256], [256, 256], [256, 0]]
    assert (kept[2][0][:5], kept[2][1][-4:]) == ("first", "last")
    if by_drop:
        store.drop("a")
    else:
        store.remove(Kind.POD, "a", "j-worker-0", "u0")
    assert store._budget._used.total() == 0


WIDE = "x" * 4000 + "\U0001f600"
"""4 KB, which Python keeps in 16."""


def test_long_texts_in_the_status_are_counted_and_cut_before_a_job_is_set_aside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(budget, "FREE_BYTES", 0)
    monkeypatch.setattr(budget, "NAMESPACE_BYTES", 25_000)
    store = Store()
    conditions = [{"type": kind, "status": "True", "message": WIDE} for kind in ("Failed", "Finished")]
    for number in range(3):
        status = {"conditions": conditions, "lastFailure": {"message": WIDE}, "plan": {"images": {"worker": "i" * 300}}}
        store.put(Kind.JOB, {**job("env", number, entries=3), "status": status})
    kept = [snapshot_of(store, Key("a", f"j{number}")) for number in range(3)]
    assert not any(found.quarantined for found in kept)
    assert [len(found.job["status"]["lastFailure"]["message"]) for found in kept] == [4001, 256, 256]
    assert [len(found.job["status"]["plan"]["images"]["worker"]) for found in kept] == [300, 300, 300]
    assert store._budget._used.total() > 16_000
    for number in range(3):
        store.remove(Kind.JOB, "a", f"j{number}", f"a-{number}")
    assert store._budget._used.total() == 0


def test_what_pods_answer_is_counted_and_not_kept_beyond_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "FREE_BYTES", 0)
    monkeypatch.setattr(budget, "NAMESPACE_BYTES", 100_000)
    store, key = Store(), Key("a", "j")
    payload = json.dumps({"phase": "training", "workerSeconds": {f"worker-{n}": n for n in range(512)}}).encode()
    report = progress_report.parse(payload)
    assert report is not None
    store.put(Kind.JOB, {**job("env", 1, entries=3), "metadata": {**job("env", 1, entries=3)["metadata"], "name": "j"}})
    for index in range(4):
        store.put(Kind.POD, pod_of(index, {}))
        store.store_report(key, f"u{index}", report, len(payload))
    assert sorted(snapshot_of(store, key).reports) == ["u0", "u1"], "each is counted with some 40 KiB"
    assert taken_by(report) < store._budget._used["a"] / 2
    store.store_report(key, "u0", report, 16_000)
    assert sorted(snapshot_of(store, key).reports) == ["u1"], "an old one would say that the job stands still"
    assert store.store_answer(key, LeaderAnswer("u2", WhoTrains(1), Agreed(1, 1, frozenset(range(512)))), 15_000)
    assert snapshot_of(store, key).leader_answer is None
    store.put(
        Kind.POD, {**pod_of(1, {}), "metadata": {**pod_of(1, {})["metadata"], "uid": "new", "resourceVersion": "2"}}
    )
    assert store._budget._used.total() == 0, "the pod that had answered is another one's"


def taken_by(report: progress_report.Report) -> int:
    gc.collect()
    tracemalloc.start()
    copies = [report.model_copy(deep=True) for _ in range(20)]
    gc.collect()
    taken = tracemalloc.get_traced_memory()[0] // len(copies)
    tracemalloc.stop()
    return taken


def test_the_last_words_of_a_deleted_pod_stay_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    store, key = Store(), Key("a", "j1")
    following = {"goodput": {"pod": "p", "before": {"since": "2026-01-01T00:00:00Z"}, "time": "2026-01-01T00:00:00Z"}}
    store.put(Kind.JOB, {**job("env", 1, entries=3), "status": following})
    said = {"phase": "Failed", "message": WIDE, "containerStatuses": [ENDED]}
    metadata = {**pod_of(0, {})["metadata"], "name": "j1-worker-0", "uid": "p", "labels": {"tfgpu.dev/job-name": "j1"}}
    store.put(Kind.POD, {"metadata": metadata, "spec": {}, "status": said})
    before = store._budget._used.total()
    store.remove(Kind.POD, "a", "j1-worker-0", "p")
    assert snapshot_of(store, key).departed is not None
    assert store._budget._used.total() == before > 16_000
    store.put(
        Kind.JOB,
        {**job("env", 1, entries=3), "metadata": {**job("env", 1, entries=3)["metadata"], "resourceVersion": "2"}},
    )
    assert snapshot_of(store, key).departed is None
    assert store._budget._used.total() == 0


def test_a_job_that_was_packed_before_it_was_beyond_the_budget_does_not_keep_its_spec(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The operator's own status writes put the job into the cache as it was kept."""
    store, whole = Store(), trim_job(job("env", 1, entries=1000))
    monkeypatch.setattr(budget, "FREE_BYTES", 0)
    monkeypatch.setattr(budget, "NAMESPACE_BYTES", 1000)
    store.put(Kind.JOB, whole)
    assert packed.PACKED in whole
    assert packed.PACKED not in snapshot_of(store, Key("a", "j1")).job


@pytest.mark.parametrize("names", [{"annotations": "x" * 100_000}, {"uid": "x" * 100_000}])
def test_no_name_is_kept_longer_than_names_are(names: dict[str, str]) -> None:
    """Texts that are names elsewhere have no limit in an annotation or an owner's uid: 1 MB a job."""
    if "uid" in names:
        owner = {"apiVersion": "tfgpu.dev/v1alpha1", "kind": "TFGPUJob", "controller": True, **names}
        of_pod = trim_pod({**pod_of(0, {}), "metadata": {**pod_of(0, {})["metadata"], "ownerReferences": [owner]}})
        assert len(of_pod.owner_uid) == 256
    else:
        metadata = {**job("env", 1, entries=3)["metadata"], "annotations": {PREBUILT_WORKLOAD: names["annotations"]}}
        kept = trim_job({**job("env", 1, entries=3), "metadata": metadata})["metadata"]["annotations"]
        assert len(kept[PREBUILT_WORKLOAD]) == 256


def test_a_template_s_image_is_no_longer_than_spec_image_may_be() -> None:
    """Four of 65,000 characters in status.plan took 1 MB a job."""
    store, container = Store(), {"name": "tensorflow", "image": "i" * 1025}
    template = {"spec": {"containers": [container]}}
    store.put(Kind.JOB, sizes.job_of(template, 1))
    outcome = reconcile(snapshot_of(store, Key("default", "train")), NOW, make.CONFIG)
    assert outcome.status is not None
    assert "containers[0].image" in outcome.status["conditions"][0]["message"]


ENDED = {"name": "tensorflow", "state": {"terminated": {"exitCode": 1, "message": WIDE}}}


def pod_of(index: int, status: Object) -> Object:
    labels = {"tfgpu.dev/job-name": "j"}
    metadata = {
        "name": f"j-worker-{index}",
        "namespace": "a",
        "uid": f"u{index}",
        "labels": labels,
        "resourceVersion": "1",
    }
    return {"metadata": metadata, "spec": {}, "status": status}
