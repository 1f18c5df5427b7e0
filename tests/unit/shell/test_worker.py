"""The worker writes in the promised order, and each answer of the API server leads where it should."""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime, timedelta

import pytest
from tests.harness.known import snapshot_of
from tests.harness.vtime import virtual
from tests.unit.shell.make import flush, job, pod
from tests.unit.shell.rig import CONFIG, INTENT, KEY, NOW, STATUS, Brain, Rig, create_pod

from tfgpujob.core.observed.snapshot import (
    Config,
    Create,
    Delete,
    Event,
    Kind,
    Outcome,
    Refusal,
    Snapshot,
    StatusUpdate,
)
from tfgpujob.kube.errors import ApiError
from tfgpujob.shell.worker import Core


@pytest.fixture(autouse=True)
def _all_log_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)


def test_intent_deletes_first_create_the_rest_status_events() -> None:
    old = pod("train-worker-9", uid="old")
    outcome = Outcome(
        intent=INTENT,
        deletes=(Delete(Kind.POD, "train-worker-9", "old"),),
        creates=(create_pod("train-worker-0"), create_pod("train-worker-1")),
        first="train-worker-1",
    )
    brain = Brain(outcome, StatusUpdate(status=STATUS, events=(Event("Normal", "Created", "all"),)))
    rig = Rig(brain, job(), old)
    assert rig.reconcile_once() == "ok"
    assert rig.cluster.calls == [
        "status train Pending",
        "delete Pod train-worker-9 old",
        "create Pod train-worker-1",
        "create Pod train-worker-0",
        "status train Starting",
        "event Created",
    ]
    assert brain.refusals == ()
    assert [p.name for p in rig.store.pods(KEY)] == ["train-worker-0", "train-worker-1"]
    assert rig.cluster.events[0]["involvedObject"]["uid"] == "job-uid"


def test_finalize_status_sees_the_job_as_the_intent_left_it() -> None:
    brain = Brain(Outcome(intent=INTENT, creates=(create_pod("train-worker-0"),)))
    rig = Rig(brain, job())
    rig.reconcile_once()
    finalized = brain.seen[-1].job
    assert finalized is not None
    assert finalized["status"] == INTENT


def test_a_failed_intent_forbids_everything_after_it() -> None:
    brain = Brain(Outcome(intent=INTENT, creates=(create_pod("train-worker-0"),)))
    rig = Rig(brain, job())
    rig.refuse("status", ApiError(0, "Timeout", "no answer"))
    assert rig.reconcile_once() == "error"
    assert rig.cluster.calls == ["status train Pending"]
    assert rig.queue.failures(KEY) == 1


def test_a_conflict_discards_the_outcome_and_refreshes_the_job() -> None:
    brain = Brain(Outcome(intent=INTENT, creates=(create_pod("train-worker-0"),)))
    rig = Rig(brain, job(), job_known=job(version=1))
    assert rig.reconcile_once() == "stale"
    assert rig.cluster.calls == ["status train Pending", "get TFGPUJob train"]
    assert snapshot_of(rig.store, KEY).job == rig.cluster.held(Kind.JOB, "train")


def test_a_conflict_because_the_job_is_gone_removes_it_from_the_store() -> None:
    rig = Rig(Brain(Outcome(intent=INTENT)), job())
    rig.cluster.server.delete(Kind.JOB, KEY.namespace, KEY.name, by="somebody")
    assert rig.reconcile_once() == "stale"
    assert rig.store.jobs() == []
    assert rig.reconcile_once() == "ok"


def test_creates_without_an_intent_want_the_job_as_it_was_decided_on() -> None:
    brain = Brain(Outcome(creates=(create_pod("train-worker-0"),)))
    same = Rig(brain, job())
    assert same.reconcile_once() == "ok"
    assert same.cluster.calls == ["get TFGPUJob train", "create Pod train-worker-0"]

    changed = Rig(brain, job(), job_known=job(version=1))
    assert changed.reconcile_once() == "stale"
    assert changed.cluster.calls == ["get TFGPUJob train"]

    deleted = Rig(brain, job(deletionTimestamp="2026-01-01T00:00:00Z"))
    assert deleted.reconcile_once() == "stale"
    assert deleted.cluster.calls == ["get TFGPUJob train"]


@pytest.mark.parametrize(("code", "reason"), [(403, "Forbidden"), (422, "Invalid"), (404, "NotFound")])
def test_a_refused_first_create_holds_the_rest_back_and_is_concluded(code: int, reason: str) -> None:
    outcome = Outcome(
        intent=INTENT,
        creates=(create_pod("train-worker-0"), create_pod("train-worker-1")),
        first="train-worker-0",
    )
    brain = Brain(outcome, StatusUpdate(status=STATUS))
    rig = Rig(brain, job())
    rig.refuse("create", ApiError(code, reason, "exceeded quota"))
    assert rig.reconcile_once() == "ok"
    assert rig.cluster.calls == ["status train Pending", "create Pod train-worker-0", "status train Starting"]
    assert brain.refusals == (Refusal(Kind.POD, "train-worker-0", code, reason, "exceeded quota"),)


def test_a_pod_that_came_back_without_a_field_is_deleted_and_counts_as_refused() -> None:
    """Servers before 1.27 drop what they don't know: the pod is not the one that was asked for."""
    right = pod("train-worker-0", version=None)
    misspelt = {**right, "spec": {**right["spec"], "nodeSelecter": {"gpu": "a100"}}}
    brain = Brain(Outcome(intent=INTENT, creates=(Create(Kind.POD, misspelt),)), StatusUpdate(status=STATUS))
    rig = Rig(brain, job())
    assert rig.reconcile_once() == "ok"
    assert [call.rpartition(" train")[0] for call in rig.cluster.calls[1:3]] == ["create Pod", "delete Pod"]
    assert rig.cluster.server.select(Kind.POD) == []
    message = "this API server does not know spec.nodeSelecter."
    assert brain.refusals == (Refusal(Kind.POD, "train-worker-0", 422, "Invalid", message),)
    assert rig.store.pods(KEY) == ()


def test_on_a_server_that_validates_fields_a_webhook_may_take_one_out() -> None:
    plain = pod("train-worker-0", version=None)
    sent = {**plain, "spec": {**plain["spec"], "runtimeClassName": "nvidia"}}
    brain = Brain(Outcome(intent=INTENT, creates=(Create(Kind.POD, sent),)), StatusUpdate(status=STATUS))
    rig = Rig(brain, job())
    rig.cluster.webhook = lambda body: plain
    rig.cluster.old = False
    assert rig.reconcile_once() == "ok"
    assert not brain.refusals
    assert [found.name for found in rig.store.pods(KEY)] == ["train-worker-0"]


def test_no_answer_to_a_create_is_tried_again_and_finalizes_nothing() -> None:
    brain = Brain(Outcome(intent=INTENT, creates=(create_pod("train-worker-0"),)))
    rig = Rig(brain, job())
    rig.refuse("create", ApiError(0, "Timeout", "no answer"))
    for _ in range(4):
        assert rig.reconcile_once() == "error"
    assert brain.refusals is None


def test_a_server_error_that_stays_becomes_a_refusal() -> None:
    brain = Brain(Outcome(creates=(create_pod("train-worker-0"),)))
    rig = Rig(brain, job())
    rig.refuse("create", ApiError(500, "InternalError", "failed calling webhook"))
    assert [rig.reconcile_once() for _ in range(3)] == ["error", "error", "ok"]
    assert brain.refusals == (Refusal(Kind.POD, "train-worker-0", 500, "InternalError", "failed calling webhook"),)


@virtual
async def test_retry_after_is_honoured() -> None:
    brain = Brain(Outcome(creates=(create_pod("train-worker-0"),)))
    rig = Rig(brain, job())
    rig.refuse("create", ApiError(429, "TooManyRequests", "later", retry_after=9))
    await rig.worker.reconcile_once(KEY)
    await rig.queue.get()
    assert asyncio.get_running_loop().time() == pytest.approx(9)


@virtual
async def test_our_own_pod_under_a_taken_name_counts_as_created() -> None:
    created = Event("Normal", "Created", "a pod")
    brain = Brain(Outcome(creates=(create_pod("train-worker-0"),)), StatusUpdate(status=STATUS, events=(created,)))
    rig = Rig(brain, job(), pod("train-worker-0", uid="made-before"))
    assert await rig.worker.reconcile_once(KEY) == "ok"
    assert brain.refusals == ()
    assert [p.uid for p in rig.store.pods(KEY)] == ["made-before"]
    await flush(rig.recorder)
    assert "event Created" not in rig.cluster.calls, "nothing was created"
    await rig.queue.get()
    assert asyncio.get_running_loop().time() > 0, "it is looked at again, but not at once: this may go on for ever"


@pytest.mark.parametrize(("owner", "label"), [("", None), ("", "train"), ("another-job", "train")])
def test_a_foreign_or_old_pod_under_a_taken_name_is_a_refusal_that_says_whose(owner: str, label: str | None) -> None:
    brain = Brain(Outcome(creates=(create_pod("train-worker-0"),)))
    rig = Rig(brain, job(), pod("train-worker-0", uid="theirs", owner=owner, job_name=label))
    assert rig.reconcile_once() == "ok"
    assert brain.refusals is not None
    (refusal,) = brain.refusals
    assert refusal.code == 409
    assert refusal.holder is not None
    assert (refusal.holder.uid, refusal.holder.owner_uid) == ("theirs", owner)


def test_a_pod_that_is_gone_or_replaced_needs_no_delete() -> None:
    for there in ([], [pod("train-worker-0", uid="next")]):
        brain = Brain(Outcome(intent=INTENT, deletes=(Delete(Kind.POD, "train-worker-0", "old"),)))
        rig = Rig(brain, job(), *there)
        rig.store.put(Kind.POD, pod("train-worker-0", uid="old"))
        assert rig.reconcile_once() == "ok"
        assert [p.uid for p in rig.store.pods(KEY)] == [p["metadata"]["uid"] for p in there]


def test_an_accepted_delete_is_known_at_once() -> None:
    brain = Brain(Outcome(intent=INTENT, deletes=(Delete(Kind.POD, "train-worker-0", "old"),)))
    rig = Rig(brain, job(), pod("train-worker-0", uid="old"))
    rig.store.put(Kind.POD, pod("train-worker-0", uid="old"))
    rig.reconcile_once()
    assert [p.deleting for p in rig.store.pods(KEY)] == [True]


def test_a_lookup_is_answered_by_the_api_server_before_anything_is_decided() -> None:
    brain = Brain(Outcome(lookups=("train-worker-0", "train-worker-1")))
    rig = Rig(brain, job(), pod("train-worker-0", uid="missed", job_name=None))
    assert rig.reconcile_once() == "ok"
    assert rig.cluster.calls == ["get Pod train-worker-0", "get Pod train-worker-1"]
    assert brain.seen[1].absent == {"train-worker-1"}
    assert [p.uid for p in brain.seen[1].pods] == ["missed"]


@virtual
async def test_the_next_look_is_at_the_earlier_deadline() -> None:
    later, sooner = NOW + timedelta(minutes=30), NOW + timedelta(seconds=10)
    brain = Brain(Outcome(requeue_at=later), StatusUpdate(requeue_at=sooner))
    rig = Rig(brain, job())
    await rig.worker.reconcile_once(KEY)
    await rig.queue.get()
    assert asyncio.get_running_loop().time() == pytest.approx(10)


def test_the_core_learns_since_when_it_has_kept_a_change_back() -> None:
    brain = Brain(Outcome(), StatusUpdate(deferred=True))
    rig = Rig(brain, job())
    rig.reconcile_once()
    rig.reconcile_once()
    brain.update = StatusUpdate(status=STATUS)
    rig.reconcile_once()
    rig.reconcile_once()
    since = [s.deferred_since for s in brain.seen]
    assert since == [None, None, NOW, NOW, NOW, NOW, None, None]


def test_a_core_that_raises_stops_no_other_job() -> None:
    brain = Brain(Outcome())
    rig = Rig(brain, job())

    def broken(snapshot: Snapshot, now: datetime, config: Config) -> Outcome:
        raise KeyError("oops")

    rig.worker._core = Core(broken, brain.report_refusals, brain.finalize_status, CONFIG)
    assert rig.reconcile_once() == "error"
    assert rig.queue.failures(KEY) == 1
    assert rig.worker.failing.lines() == ["TFGPUJob ns/train: KeyError: 'oops'"]
    rig.worker._core = Core(brain.reconcile, brain.report_refusals, brain.finalize_status, CONFIG)
    assert rig.reconcile_once() == "ok"
    assert (rig.worker.failing.lines(), rig.worker.failing.total) == ([], 1)


def test_a_job_that_is_gone_wants_nothing() -> None:
    rig = Rig(Brain(Outcome(intent=INTENT)))
    assert rig.reconcile_once() == "ok"
    assert rig.cluster.calls == []
