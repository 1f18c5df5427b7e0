"""`tfgpu explain`: what it says is what the core does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.cli.parsed import TRAINER, parsed_job
from tests.unit.cli.typed import typed

from tfgpujob.cli import main as cli
from tfgpujob.cli.behaviour import batch, sentences, strategy_advice
from tfgpujob.core.observed.plan import resolve
from tfgpujob.core.observed.snapshot import Snapshot
from tfgpujob.core.reconcile import reconcile
from tfgpujob.core.status.builder import moment
from tfgpujob.exits import Exit
from tfgpujob.local import offline
from tfgpujob.names import Condition

ROOT = Path(__file__).resolve().parents[3]
STORAGE = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
CACHE = [{"name": "tensorflow", "volumeMounts": [{"name": "cache", "mountPath": "/cache"}]}]
CLAIMS = {
    "volumeClaimTemplates": [{"metadata": {"name": "cache"}, "spec": STORAGE}],
    "template": {"spec": {"containers": CACHE}},
}
DEVICES = {"deviceClassName": "gpu.nvidia.com", "count": 2}
GIT = {"url": "https://a.example/b", "revision": "1" * 40}
GO = {"persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete"}}
NEVER_BUT_THE_CHIEF = {"worker": {"restartPolicy": "Never"}, "chief": {}}


def said(spec: dict[str, Any]) -> str:
    parsed = parsed_job(spec)
    return "\n".join(text for _, text in sentences(parsed, resolve(parsed, offline.CONFIG)))


@pytest.mark.parametrize(
    ("memory", "text"),
    [
        ({"growth": True}, "TF_FORCE_GPU_ALLOW_GROWTH is set for your program."),
        ({"limitMiB": 500}, "Your program must limit itself to the 500 MiB of gpu.memory.limitMiB"),
        ({"growth": False}, "gpu.memory.growth: false leaves it to your program"),
    ],
)
def test_it_says_what_gpu_memory_does_for_an_own_program(memory: dict[str, Any], text: str) -> None:
    template = {"spec": {"containers": [{"name": "tensorflow", "command": ["train"]}]}}
    own = {"trainer": None, "image": "mine", "replicaSpecs": {"worker": {"replicas": 2, "template": template}}}
    assert text in said({**own, "gpu": {"memory": memory}})
    assert "GPU memory" not in said({"gpu": {"memory": memory}})
    assert text not in said(own)


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.name)
def test_its_objects_are_those_that_the_operator_creates(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = next(d for d in yaml.safe_load_all(example.read_text()) if d["kind"] == "TFGPUJob")
    job["metadata"] |= {"namespace": "default", "uid": offline.UNKNOWN_UID, "generation": 1, "resourceVersion": "1"}
    outcome = reconcile(Snapshot(job), moment("2026-01-01T00:00:00Z"), offline.CONFIG)
    explained = json.loads(typed(capsys, "explain", str(example), "-o", "json", code=0).out)
    assert explained["objects"] == [create.body for create in outcome.creates]
    assert outcome.status is not None
    (accepted,) = [c for c in outcome.status["conditions"] if c["type"] == Condition.ACCEPTED]
    assert accepted["message"] == " ".join(["The spec is valid.", *explained["warnings"]])


def test_it_is_readable_and_shows_the_tf_config(capsys: pytest.CaptureFixture[str]) -> None:
    shown = typed(capsys, "explain", str(ROOT / "examples/digits-multiworker.yaml"), code=0).out
    assert shown.startswith("digits: MultiWorkerMirrored, 2 × worker\n")
    assert '{"cluster":{"worker":["digits-worker-0.digits.default.svc:2222",' in shown
    assert "start      All 2 required pods are created at once; when not ready within 30m00s" in shown
    assert shown.count('"cluster"') == 1
    assert cli.main(["explain", str(ROOT / "examples/digits-multiworker.yaml"), "-o", "wide"]) == 0
    assert capsys.readouterr().out.count('"cluster"') == 2


def test_a_job_that_the_operator_refuses_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "examples/digits-multiworker.yaml").read_text().replace("epochs:", "epoch:")
    (tmp_path / "job.yaml").write_text(text)
    assert cli.main(["explain", str(tmp_path / "job.yaml")]) == Exit.USAGE
    assert "spec.trainer.epoch: is not a field; did you mean epochs?" in capsys.readouterr().err


TAKES_WHAT_THERE_IS = {
    "replicaSpecs": {"worker": {"replicas": 4, "minReplicas": 2}},
    "runPolicy": {"recovery": "InPlace", "elasticPolicy": {"shrinkAfterSeconds": 30, "growAfterSeconds": 60}},
}

SHARES_PARTS = TAKES_WHAT_THERE_IS | {
    "strategy": "Custom",
    "trainer": {
        "entrypoint": "digits",
        "mode": "predict",
        "globalBatchSize": 128,
        "initialWeights": "/w",
        "output": {"claim": "a"},
    },
}

OWN_IN_PLACE: dict[str, Any] = {
    "trainer": None,
    "image": "mine",
    "replicaSpecs": {"worker": {"template": {"spec": {"containers": [{"name": "tensorflow", "command": ["train"]}]}}}},
    "runPolicy": {"recovery": "InPlace"},
}
TWO_OWN_PROGRAMS = {"worker": {"replicas": 2, **OWN_IN_PLACE["replicaSpecs"]["worker"]}}
IN_PLACE = {"runPolicy": {"recovery": "InPlace"}}
SPARE = {"runPolicy": {"recovery": "InPlace", "spares": 1}}


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({}, "Each step takes 128 examples: 64 on each of 2 replicas."),
        (SPARE, "The start does not wait for 1 spare pod more"),
        (SPARE, "If a pod is lost, only that pod is created again; the others keep theirs."),
        (IN_PLACE, "The steps since the newest copy in the memory of the other workers are computed again."),
        (
            {**IN_PLACE, "trainer": {**TRAINER, "entrypoint": "train.py"}},
            "A script has copies of the fit() that runs",
        ),
        ({**OWN_IN_PLACE, "replicaSpecs": TWO_OWN_PROGRAMS}, "It continues from the program's last checkpoint."),
        (SPARE, "A spare replaces any other lost pod, and the new pod becomes a spare."),
        (IN_PLACE, "While the pod of worker 0 is created again, the others wait."),
        (
            {**IN_PLACE, "replicaSpecs": {"worker": {"replicas": 1}}},
            "If its only pod is lost, so is the copy in memory",
        ),
        (
            {**IN_PLACE, "replicaSpecs": {"worker": {"replicas": 3, "minReplicas": 2}}},
            "While any other pod is created again, the rest train on, if at least 2 workers are left.",
        ),
        ({"gpu": {"perReplica": 1, "processesPerGpu": 2, "memory": {"limitMiB": 99}}}, "32 on each of 4 replicas"),
        ({"gpu": {"perReplica": 3}}, "128 examples: 21 or 22 on each of 6 replicas."),
        ({"trainer": {**TRAINER, "checkpoint": {"everySteps": 5, "everyEpochs": 2}}}, "5 steps and every 2 epochs"),
        ({"trainer": {**TRAINER, "checkpoint": {"everySeconds": 90}}}, "it saves every 1m30s, and the last 3"),
        ({}, "What starts again: all replicas."),
        (
            {"trainer": {**TRAINER, "code": {"git": GIT}}},
            f"first fetches the commit {'1' * 40} of https://a.example/b.",
        ),
        (
            {"trainer": {**TRAINER, "code": {"image": "c:1"}, "models": {"image": "m:2"}}},
            "Pods have /code of c:1 as /code and /models of m:2 as /models: as a volume where every node can mount",
        ),
        ({"trainer": {"entrypoint": "a.py"}}, "the last 3 are kept; a training loop of its own saves by itself."),
        ({"trainer": {"entrypoint": "a.py", "args": ["--name", "a b"]}}, "It is run with the arguments --name 'a b'."),
        ({"trainer": {**TRAINER, "requirements": ["rich"]}}, "lacks; /output is lost with its pod: set output.claim."),
        ({"trainer": {**TRAINER, "requirements": ["rich"], "output": {"claim": "a"}}}, "/output keeps it for the next"),
        ({"replicaSpecs": {"worker": CLAIMS}}, "own in every attempt: cache-<pod>. They stay when the job is deleted."),
        ({"replicaSpecs": {"worker": CLAIMS | GO}}, "They go with the job."),
        ({"gpu": {"claim": DEVICES}}, "Each worker gets 2 devices by a resource claim from gpu.nvidia.com."),
        ({"gpu": {"resourceName": "nvidia.com/mig-1g.10gb"}}, "Pods ask for nvidia.com/mig-1g.10gb. GPU time counts"),
        ({"runPolicy": {"schedulingPolicy": {"topologyKey": "rack"}}}, "label rack, where that can be done."),
        ({"gpu": {"claim": DEVICES}}, "Each step takes 128 examples: 32 on each of 4 replicas."),
        (
            {"gpu": {"claim": DEVICES}, "replicaSpecs": {"worker": {}, "evaluator": {"gpus": 0}}},
            "The evaluator gets no claim and runs on the CPU.",
        ),
        (TAKES_WHAT_THERE_IS, "If not all 4 workers have a node after 30s, it begins with 2 or more that do."),
        (TAKES_WHAT_THERE_IS, "when there is room for them, every 1m00s at most (growAfterSeconds)."),
        (SHARES_PARTS, "are shared among 4 workers, each of which takes the next part that no other has."),
        (SHARES_PARTS, "A worker that finds a node later joins the others, which predict on."),
        (SHARES_PARTS, "when a worker has exited with 0, which it does once all rows are there."),
        (SHARES_PARTS, "The other workers do the part of one that fails or is lost."),
        (OWN_IN_PLACE, "Your command is run by tfgpu-supervise, which the image must have."),
        (OWN_IN_PLACE, "First its processes are restarted in their pods, at once"),
        ({"runPolicy": {"recovery": "InPlace"}}, "First its processes are restarted in their pods, at once"),
        (
            {
                "strategy": "ParameterServer",
                "replicaSpecs": {"worker": {}, "ps": {}},
                "runPolicy": {"recovery": "InPlace"},
            },
            "First its process is started again in its pod, at once, with a ps the chief's too",
        ),
        ({}, "when worker 0 has exited with 0"),
        ({"successPolicy": "AllWorkers"}, "when all 2 workers have exited with 0"),
        ({"runPolicy": {"suspend": True}}, "nothing is created until it is off"),
        ({"runPolicy": {"startPolicy": "Fail", "startDeadlineSeconds": 90}}, "not ready within 1m30s"),
        (
            {"runPolicy": {"schedulingPolicy": {"scheduleTimeoutSeconds": 90}}},
            "when not on nodes within 1m30s (scheduleTimeoutSeconds) and ready within 30m00s",
        ),
        ({"runPolicy": {"activeDeadlineSeconds": 3660}}, "active for 1h01m, restarts included"),
        ({"runPolicy": {"ttlSecondsAfterFinished": 61, "cleanPodPolicy": "All"}}, "1m01s later the job is deleted"),
        ({"replicaSpecs": NEVER_BUT_THE_CHIEF}, "When a chief fails, an exit code below 128"),
        ({"replicaSpecs": NEVER_BUT_THE_CHIEF}, "When a worker fails, a failure ends the job."),
    ],
)
def test_what_to_expect(spec: dict[str, Any], sentence: str) -> None:
    assert sentence in said(spec)


def test_micro_batches_are_part_of_the_sum() -> None:
    trainer = parsed_job({"trainer": {**TRAINER, "accumulate": 4}}).trainer
    assert trainer is not None
    assert batch(128, trainer, 2) == "128 examples: 16 on each of 2 replicas, 4 times one after another"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"replicaSpecs": {"worker": {"replicas": 1}}}, "OneDevice computes what MultiWorkerMirrored does"),
        ({"replicaSpecs": {"worker": {"replicas": 1, "gpus": 4}}}, "With one pod, Mirrored does the same"),
        ({}, "Where one node has 2 GPUs, Mirrored with one worker of 2 GPUs"),
        ({"gpu": {"perReplica": 1, "processesPerGpu": 2, "memory": {"limitMiB": 99}}}, "measure both"),
        ({"strategy": "Mirrored", "replicaSpecs": {"worker": {"gpus": 4}}}, "Mirrored suits 4 GPUs of one pod"),
        ({"strategy": "Custom", "trainer": None, "image": "x"}, "leaves it to the program"),
    ],
)
def test_advice_on_the_strategy(spec: dict[str, Any], words: str) -> None:
    parsed = parsed_job(spec)
    assert words in strategy_advice(parsed, resolve(parsed, offline.CONFIG))


def test_every_job_of_a_file_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "jobs.yaml"
    job = "{kind: TFGPUJob, apiVersion: tfgpu.dev/v1alpha1, metadata: {name: NAME}, spec: SPEC}"
    spec = "{strategy: OneDevice, image: x, replicaSpecs: {worker: {}}}"
    jobs = [job.replace("NAME", name).replace("SPEC", spec) for name in ("first", "second")]
    file.write_text("\n---\n".join(jobs))
    out = typed(capsys, "explain", str(file)).out
    assert out.index("first: OneDevice, 1 × worker") < out.index("second: OneDevice, 1 × worker")
    assert cli.main(["explain", str(file), "-o", "json"]) == Exit.OK
    assert [told["job"] for told in json.loads(capsys.readouterr().out)] == ["first", "second"]


def test_it_says_what_a_job_would_do_on_some_numbers_of_gpus(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = {"strategy": "MultiWorkerMirrored", "trainer": TRAINER, "replicaSpecs": {"worker": {"replicas": 2}}}
    job = {"apiVersion": "tfgpu.dev/v1alpha1", "kind": "TFGPUJob", "metadata": {"name": "a"}, "spec": spec}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    assert cli.main(["explain", str(tmp_path / "job.yaml"), "--free", "3", "--free", "1", "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)["behaviour"]
    assert [line["topic"] for line in told][-2:] == ["on 3 GPUs", "on 1 GPU"]


def test_a_loop_of_ones_own_is_refused_several_processes_on_a_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text("import tensorflow as tf\nwith tf.GradientTape() as tape: ...\n")
    gpu = {"processesPerGpu": 2, "memory": {"growth": True}}
    spec = {"strategy": "MultiWorkerMirrored", "trainer": {"entrypoint": "train.py"}, "gpu": gpu}
    spec["replicaSpecs"] = {"worker": {"replicas": 2}}
    job = {"apiVersion": "tfgpu.dev/v1alpha1", "kind": "TFGPUJob", "metadata": {"name": "a"}, "spec": spec}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    for command in (["explain"], ["run", "--local"]):
        assert cli.main([*command, str(tmp_path / "job.yaml")]) == Exit.USAGE
        assert "spec.gpu.processesPerGpu: train.py has a training loop of its own" in capsys.readouterr().err


def test_gpus_are_those_of_each_worker_as_in_run_and_submit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text("import keras\nmodel.fit(x)\n")
    assert cli.main(["explain", str(tmp_path / "train.py"), "--workers", "2", "--gpus", "4", "-o", "yaml"]) == 0
    objects = yaml.safe_load(capsys.readouterr().out)["objects"]
    asked = [obj["spec"]["containers"][0]["resources"] for obj in objects if obj["kind"] == "Pod"]
    assert [one["limits"]["nvidia.com/gpu"] for one in asked] == ["4", "4"]
    assert cli.main(["explain", "job.yaml", "--gpus", "4"]) == Exit.USAGE
