"""status.progress and status.lastCheckpoint, and which pods are polled for them."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from tests.unit.core import make
from tests.unit.core.gangs import running
from tests.unit.core.simulator import World

from tfgpujob.core.status.progress import MAX_PEERS, peer_progress_targets, progress_target

CHECKPOINT = {"step": 4, "directory": "/output/c", "time": "2026-01-01T00:00:00Z"}


def test_what_the_reporter_tells_is_kept_with_one_write() -> None:
    world = running()
    before = len(world.writes)
    told: dict[str, Any] = {
        "loss": 0.1234567,
        "examplesPerSecond": 512.5,
        "stepSeconds": 0.5,
        "epoch": 1,
        "epochs": 2,
        "gpuUsePercent": [93, 0],
        "gpuMemoryMiB": [2048, 512],
    }
    world.tells("train-worker-0", **told, lastCheckpoint=CHECKPOINT)
    assert world.status["progress"] == {
        "phase": "training",
        "step": 5,
        "totalSteps": 10,
        "percent": 50,
        "epoch": 1,
        "totalEpochs": 2,
        "loss": "0.123457",
        "examplesPerSecond": "512.5",
        "remainingSeconds": 3,
        "gpuUsePercent": [93, 0],
        "gpuMemoryMiB": [2048, 512],
        "time": "2026-01-01T00:00:00Z",
    }
    assert world.status["lastCheckpoint"] == CHECKPOINT
    assert len(world.writes) == before + 1


def test_the_same_again_costs_no_write_and_keeps_its_time() -> None:
    world = running()
    world.tells("train-worker-0", lastCheckpoint={"step": 4, "directory": "/output/c"})
    told, before = world.status, len(world.writes)
    world.advance(minutes=5)
    world.tells("train-worker-0", lastCheckpoint={"step": 4, "directory": "/output/c"}, idleSeconds=9)
    assert world.status == told
    assert len(world.writes) == before


SUMMARY = {"steps": 12, "epochs": 3, "examplesPerSecond": 640.25, "splits": {"train": {"loss": 0.25, "accuracy": 1}}}


@pytest.mark.parametrize("told", [True, False])
def test_a_job_that_has_succeeded_is_at_its_end_even_if_nobody_asked_it_in_time(told: bool) -> None:
    world = running()
    if told:
        world.tells("train-worker-0", loss=0.5, stepSeconds=0.5, gpuUsePercent=[93])
    world.exits("train-worker-1", 0)
    world.exits("train-worker-0", 0, json.dumps({"code": 0, "summary": SUMMARY}))
    assert world.phase == "Succeeded"
    ended = {"step": 12, "totalSteps": 12, "percent": 100, "epoch": 3, "totalEpochs": 3, "examplesPerSecond": "640.25"}
    ended["loss"] = "0.25"  # not the one of the last report, which may be of the first epoch
    kept = {"phase": "training"} if told else {}
    assert world.status["progress"] == {**ended, **kept, "time": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize("message", ["", "done", "[]", '{"summary": 1}', '{"summary": {"steps": -1}}', '{"summary": {'])
def test_what_another_program_leaves_is_no_summary(message: str) -> None:
    world = running()
    world.tells("train-worker-0")
    before = world.status["progress"]
    world.exits("train-worker-1", 0)
    world.exits("train-worker-0", 0, message)
    assert (world.phase, world.status["progress"]) == ("Succeeded", before)


def test_a_loss_that_is_no_number_leaves_the_rest_of_the_summary() -> None:
    world = running(1)
    world.tells("train-worker-0", loss=0.5)
    world.exits("train-worker-0", 0, json.dumps({"summary": {**SUMMARY, "splits": {"train": {"loss": math.nan}}}}))
    assert world.status["progress"].items() >= {"step": 12, "percent": 100}.items()
    assert "loss" not in world.status["progress"]


def test_only_the_reporter_speaks_for_the_job() -> None:
    world = running()
    world.tells("train-worker-1", step=7)
    assert "progress" not in world.status


def test_a_worker_that_still_predicts_speaks_for_those_that_are_through() -> None:
    trainer = {"entrypoint": "digits", "mode": "predict", "globalBatchSize": 8}
    trainer |= {"predict": {"model": "/models/m.keras"}, "output": {"claim": "out"}}
    world = running(2, strategy="Custom", trainer=trainer)
    world.tells("train-worker-0", step=7)
    world.exits("train-worker-0", 0)
    assert asked(world) == ["train-worker-1"]
    world.tells("train-worker-1", step=9)
    assert world.status["progress"]["step"] == 9
    world.exits("train-worker-1", 0)
    assert (world.phase, world.status["progress"]["step"]) == ("Succeeded", 9)


@pytest.mark.parametrize("recovery", ["Pods", "InPlace"])
def test_workers_that_each_recover_in_place_are_all_asked_in_turns(recovery: str) -> None:
    trainer = {"entrypoint": "digits", "mode": "predict", "globalBatchSize": 8}
    trainer |= {"predict": {"model": "/models/m.keras"}, "output": {"claim": "out"}}
    many = MAX_PEERS + 2
    world = running(many, strategy="Custom", trainer=trainer, run={"recovery": recovery})
    world.tells("train-worker-0", step=7)
    others = {name for turn in range(2) for name in asked(world, turn)[1:]}
    assert others == ({f"train-worker-{i}" for i in range(1, many)} if recovery == "InPlace" else set())


def test_a_restart_forgets_the_progress_and_keeps_the_checkpoint() -> None:
    world = running()
    world.tells("train-worker-0", lastCheckpoint=CHECKPOINT)
    world.exits("train-worker-0", 137)
    assert "progress" not in world.status
    assert world.status["lastCheckpoint"] == CHECKPOINT


def test_a_finished_job_keeps_what_it_told_last() -> None:
    world = running()
    world.tells("train-worker-0", step=9)
    world.exits("train-worker-0", 0)
    world.exits("train-worker-1", 0)
    assert world.phase == "Succeeded"
    assert world.status["progress"]["step"] == 9


@pytest.mark.parametrize(("told", "percent"), [({"step": 0}, 0), ({"step": 11}, 100), ({"steps": 0}, None)])
def test_percent(told: dict[str, Any], percent: int | None) -> None:
    world = running()
    world.tells("train-worker-0", **told)
    assert world.status["progress"].get("percent") == percent


def asked(world: World, turn: int = 0) -> list[str]:
    """All who are asked in this turn."""
    first = progress_target(world.snapshot())
    return [pod.name for pod in (first, *peer_progress_targets(world.snapshot(), turn)) if pod is not None]


def test_of_a_job_that_gets_on_only_the_reporter_is_asked() -> None:
    world = running(3)
    assert asked(world) == ["train-worker-0"]
    world.tells("train-worker-0", idleSeconds=4)
    assert asked(world) == ["train-worker-0"]
    world = running(2, chief=1)
    assert asked(world) == ["train-chief-0"]


def test_all_are_asked_when_one_holds_up_the_others() -> None:
    world = running(3)
    world.tells("train-worker-0", workerSeconds={"worker-0": 0.1, "worker-1": 0.1, "worker-2": 0.9})
    assert asked(world) == ["train-worker-0", "train-worker-1", "train-worker-2"]


def test_of_a_large_gang_that_stands_still_all_are_asked_by_and_by() -> None:
    world = running(40)
    world.tells("train-worker-0", idleSeconds=60)
    turns = [set(asked(world, turn)) for turn in range(3)]
    assert {len(turn) for turn in turns} == {1 + MAX_PEERS}
    assert len(set.union(*turns)) == 40


def test_who_cannot_tell_is_not_asked() -> None:
    assert asked(World(make.job(worker=2))) == [], "not started"
    assert asked(running(2, trainer=None, image="mine:1")) == [], "no bundled trainer"


def test_a_program_of_ones_own_that_is_supervised_is_asked_and_stalls_only_if_stall_seconds_says_so() -> None:
    template = {"spec": {"containers": [{"name": "tensorflow", "command": ["train"]}]}}
    own: dict[str, Any] = {"trainer": None, "image": "mine:1", "run": {"recovery": "InPlace"}}
    job = make.job(worker={"replicas": 2, "template": template}, **own)
    world = World.running(job)
    assert asked(world) == ["train-worker-0"]
    world.tells("train-worker-0", step=7, idleSeconds=100_000)
    assert (world.status["progress"]["step"], world.condition("Stalled")) == (7, "")


def test_a_program_of_ones_own_is_asked_and_may_stall_if_stall_seconds_says_so() -> None:
    world = running(2, trainer=None, image="mine:1", run={"stallSeconds": 60})
    assert asked(world) == ["train-worker-0"]
    world.tells("train-worker-0", step=7)
    assert world.status["progress"]["step"] == 7
    world.tells("train-worker-0", step=7, idleSeconds=61)
    assert world.condition("Stalled") == "True/NoProgress"
    assert asked(running(1)) == ["train-worker-0"]
    world = running(2, run={"managedBy": "example.com/other"})
    assert asked(world) == [], "another controller's"
    world = running(2)
    world.exits("train-worker-0", 160)
    assert asked(world) == [], "the reporter has ended"
    world = running(2)
    world.tells("train-worker-0", idleSeconds=60)
    world.pod("train-worker-1")["status"]["podIP"] = None
    assert asked(world) == ["train-worker-0"]


def test_f2_a_program_reports_while_another_container_of_its_pod_cannot_start() -> None:
    world = running()
    for name in world.pods:
        world.pod(name)["status"]["phase"] = "Pending"
    assert progress_target(world.snapshot()) is None
    for name in world.pods:
        (container,) = world.pod(name)["status"]["containerStatuses"]
        container["state"] = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
    found = progress_target(world.snapshot())
    assert found is not None
    assert found.name == "train-worker-0"
