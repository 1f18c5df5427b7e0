"""GET /progress, from the trainer's run_status into the operator's status."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.contract import trainer_side
from tests.contract.sides import CONFIG, REPOSITORY, environment, job, parsed, read_by_trainer
from tests.contract.told import TOLD

from tfgpujob import names
from tfgpujob.core.observed import progress_series
from tfgpujob.core.observed.plan import resolve
from tfgpujob.core.observed.progress_report import Report, parse, parse_ledger, parse_summary
from tfgpujob.core.observed.trim import trim_pod
from tfgpujob.core.pods.pod import Replica, build_pod
from tfgpujob.core.pods.pod_token import pod_token
from tfgpujob_contract import phases
from tfgpujob_contract.variables import Variable

KNOWN: dict[str, Any] = {
    **{key: value for key, value in TOLD.items() if key not in ("waitsForPeers", "idleSeconds")},
    "workerSeconds": {"worker-0": 0.02, "worker-1": 0.03},
    "gpuMemoryMiB": [2048, 512],
    "gpuUsePercent": [93, 0],
    "gpuIdleSeconds": 0,
    "lastCheckpoint": {**TOLD["lastCheckpoint"], "seconds": 7},
    "inPlaceRestarts": 2,
    "waitsFor": ["job-worker-1"],
}
FOR_PEOPLE = {"allReduce", "compute"}
"""Fields of /progress that the operator does not use."""


def test_the_operator_understands_what_the_trainer_says() -> None:
    said = trainer_side.run_status(KNOWN)
    for told in (said["first"], said["known"]):
        assert parse(json.dumps(told).encode()) is not None
        assert set(told) - FOR_PEOPLE == {field.alias for field in Report.model_fields.values()}
    found = parse(json.dumps(said["known"]).encode())
    assert found is not None
    assert found.model_dump(by_alias=True) == {
        **KNOWN,
        "idleSeconds": 0,
        "waitsForPeers": True,
        "ledger": said["ledger"],
    }


def test_the_tool_understands_the_curves_that_the_trainer_tells() -> None:
    curves = progress_series.parse(trainer_side.run_status(KNOWN)["series"].encode())
    assert curves is not None
    assert curves.keys() == {"loss", "accuracy", "val_loss", "val_accuracy"}
    assert curves["loss"][-1] == curves["val_loss"][-1] == (3990, 0.000250627)
    assert curves["accuracy"][0] == (0, 0.5)
    assert curves["loss"][0][0] > 0, "its loss at step 0 was no number"


def test_the_operator_takes_a_report_of_each_phase() -> None:
    known = [value for name, value in vars(phases).items() if name.isupper()]
    assert phases.SCRIPT in known
    assert [phase for phase in known if parse(json.dumps({"phase": phase}).encode()) is None] == []


def test_the_operator_understands_the_ledger_that_the_trainer_leaves() -> None:
    words = parse_ledger(trainer_side.ended({"steps": 1}))
    assert words is not None
    assert (words.parts, words.reached) == ({"useful": 1500}, 7)


def test_the_trainer_is_told_which_steps_it_does_again() -> None:
    a_job = job({"entrypoint": "digits", "globalBatchSize": 64, "epochs": 1})
    spec = parsed(a_job)
    for reached in (0, 44):
        replica = Replica(names.Role.WORKER, 0, 2, reached_step=reached)
        pod = build_pod(a_job, spec, resolve(spec, CONFIG), replica)
        assert read_by_trainer(pod)["env"]["reached_step"] == reached


def test_the_operator_understands_the_summary_that_the_trainer_leaves() -> None:
    summary = {"steps": 1200, "epochs": 3, "examplesPerSecond": 5120.5, "splits": {"train": {"loss": 0.5}}}
    splits = {"train": {"loss": 0.5, "accuracy": 0.8}, "test": {"accuracy": 0.9}}
    log = trainer_side.ended({**summary, "splits": splits, "model": "/output/model.keras"})
    found = parse_summary(log)
    assert found is not None
    assert found.model_dump(by_alias=True) == summary
    finish = (REPOSITORY / "trainer_image/src/tfgpujob_trainer/train/finish.py").read_text()
    assert summary.keys() <= set(re.findall(r'^ +"(\w+)": ', finish, re.MULTILINE))


def test_a_loss_that_is_not_finite_is_none() -> None:
    assert json.loads(json.dumps(trainer_side.run_status({"loss": float("nan")})["known"]))["loss"] is None


def test_the_trainer_wants_the_token_that_the_operator_shows() -> None:
    a_job = job({"entrypoint": "digits", "globalBatchSize": 64, "epochs": 1})
    token = pod_token(b"key", "uid/job-worker-0/1/0")
    spec = parsed(a_job)
    pod = build_pod(a_job, spec, resolve(spec, CONFIG), Replica(names.Role.WORKER, 0, 1, 0, token))
    assert environment(pod)[Variable.PROGRESS_TOKEN] == token
    assert read_by_trainer(pod)["env"]["progress_token"] == trim_pod(pod).progress_token == token
