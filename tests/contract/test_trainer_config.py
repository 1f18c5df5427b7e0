"""spec.trainer, from the job's YAML through the pod's annotation into the trainer's own parser.

What goes between the two is JSON.
"""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.contract import trainer_side
from tests.contract.sides import (
    CONFIG,
    REPLICAS,
    config_file,
    environment,
    job,
    parsed,
    pod_of,
    read_by_trainer,
)
from tests.contract.told import FULL

from tfgpujob.api import JobSpec, parse_job
from tfgpujob.core.observed.plan import resolve
from tfgpujob_contract.trainer_config import to_json

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

MINIMAL: dict[str, Any] = {"entrypoint": "digits", "globalBatchSize": 128, "epochs": 20}
WAYS = {
    "minimal": MINIMAL,
    "every field": FULL,
    "code in a ConfigMap": {**MINIMAL, "code": {"configMap": {"name": "my-code", "paths": {"a..b.py": "a/b.py"}}}},
    "predict": {
        "entrypoint": "digits",
        "mode": "predict",
        "predict": {"model": "/models/digits", "partRows": 64},
        "globalBatchSize": 32,
    },
    "code in git": {
        **MINIMAL,
        "code": {"git": {"url": "https://a.example/b", "revision": "0" * 40, "path": "c", "secretName": "d"}},
    },
    "code in an image": {**MINIMAL, "code": {"image": "example.com/code:1"}},
}
NESTED = [
    "code",
    "code.volume",
    "data",
    "predict",
    "profile",
    "export",
    "models",
    "output",
    "checkpoint",
    "evaluate",
    "best",
    "watchdog",
]


def test_the_trainer_reads_which_layers_are_placed_where() -> None:
    placed = job({**MINIMAL, "placement": {"encoder_*": 0}}, strategy="OneDevice", replicaSpecs={"worker": {}})
    assert read_by_trainer(pod_of(placed))["config"]["placement"] == {"encoder_*": 0}


def at(config: dict[str, Any], path: str) -> dict[str, Any]:
    for key in path.split(".") if path else []:
        config = config[key]
    return config


@pytest.mark.parametrize("way", WAYS)
def test_the_trainer_reads_the_values_that_the_job_has(way: str) -> None:
    """And where the job says nothing, both sides mean the same default."""
    strategy = "Custom" if WAYS[way].get("mode") == "predict" else "MultiWorkerMirrored"
    a_job = job(WAYS[way], strategy=strategy)
    read = read_by_trainer(pod_of(a_job))
    spec = parse_job(a_job)
    assert isinstance(spec, JobSpec)
    assert spec.trainer is not None
    assert read["config"] == to_json(spec.trainer)


def test_the_trainer_accepts_every_example() -> None:
    objects = {f.name: list(yaml.safe_load_all(f.read_text())) for f in EXAMPLES.glob("*.yaml")}
    jobs = {name: next(one for one in found if one["kind"] == "TFGPUJob") for name, found in objects.items()}
    refused = {}
    for name, example in jobs.items():
        # The others run images of their own.
        if "trainer" in example["spec"]:
            example["metadata"] |= {"namespace": "team", "uid": "u"}
            for replica in resolve(parsed(example), CONFIG).members.pods:
                read = read_by_trainer(pod_of(example, *replica))
                if read.get("config", {}).get("entrypoint") != example["spec"]["trainer"]["entrypoint"]:
                    refused[name, *replica] = read
    assert refused == {}


def test_a_field_that_neither_side_knows_is_an_error_on_both() -> None:
    """The operator says so first; a config file that is another program's ends with exit code 2."""
    env = environment(pod_of(job(FULL)))
    accepted = {}
    for where in ("", *NESTED):
        broken = deepcopy(FULL)
        at(broken, where)["speed"] = 1
        answer = trainer_side.pod(json.dumps(broken), env)
        if answer.get("code") != 2 or "speed" not in answer["error"] or isinstance(parse_job(job(broken)), JobSpec):
            accepted[where] = answer
    assert accepted == {}


BAD: dict[str, tuple[str, Any]] = {
    "no entrypoint": ("entrypoint", ""),
    "batch of nothing": ("globalBatchSize", 0),
    "batch as text": ("globalBatchSize", "128"),
    "batch with a fraction": ("globalBatchSize", 1.5),
    "batch as a switch": ("globalBatchSize", True),
    "negative seed": ("seed", -1),
    "seed beyond 32 bit": ("seed", 2**31),
    "unknown remainder": ("remainder", "pad"),
    "epochs beside steps": ("epochs", 3),
    "no steps": ("steps", 0),
    "switch as text": ("deterministic", "yes"),
    "two sources of code": ("code.image", "example.com/code:1"),
    "a model to predict with while training": ("predict.model", "/model.keras"),
    "predicting for some epochs": ("mode", "predict"),
    "parts of nothing": ("predict.partRows", 0),
    "keep none": ("checkpoint.keep", 0),
    "no patience": ("watchdog.stepSeconds", 0),
    "params as a list": ("params", [1]),
    "an argument that is no text": ("args", [1]),
    "a class that is no number": ("classWeights", {"cat": 2}),
    "a negative class weight": ("classWeights", {"0": -1}),
    "a best without a direction": ("best", {"monitor": "accuracy"}),
    "a best without what is judged": ("best", {"patience": 3}),
    "a best without evaluations": ("evaluate", {}),
    "layers on a GPU that is no number": ("placement", {"encoder_*": "1"}),
    "XLA everywhere": ("jit", "all"),
    "gradients in a byte": ("allReduce", "float8"),
    "gradients by post": ("communication", "Post"),
    "copies between machines": ("communication", "HierarchicalCopy"),
}


def reading(answer: dict[str, Any]) -> bool:
    """Whether the trainer reads the file, or says of its JSON that it is none of spec.trainer's."""
    return "error" not in answer or any(said in answer["error"] for said in ("it must be", "did you mean", "known:"))


def test_the_trainer_says_no_rule_of_the_operators_again() -> None:
    """No job is accepted for what a rule refuses, so that its pods could only repeat it, in other words."""
    env = environment(pod_of(job(FULL)))
    differ = {}
    for case, (path, value) in BAD.items():
        broken = deepcopy(FULL)
        parent, _, key = path.rpartition(".")
        at(broken, parent)[key] = value
        by_trainer, by_operator = trainer_side.pod(json.dumps(broken), env), parse_job(job(broken))
        if isinstance(by_operator, JobSpec) or not reading(by_trainer):
            differ[case] = by_trainer, by_operator
    assert differ == {}


def test_the_annotation_is_one_file_in_the_place_that_the_command_names() -> None:
    """The downward API writes the annotation to /etc/tfgpu/trainer.json, the path in tfgpu-train's arguments."""
    pod = pod_of(job(FULL))
    (container,) = pod["spec"]["containers"]
    assert container["command"] == ["tfgpu-train", "--config", "/etc/tfgpu/trainer.json"]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    (item,) = volumes[mounts["/etc/tfgpu"]]["downwardAPI"]["items"]
    assert item["path"] == "trainer.json"
    assert item["fieldRef"]["fieldPath"] == "metadata.annotations['tfgpu.dev/trainer-config']"
    assert "train.py" in config_file(pod)
    assert volumes[mounts["/results"]]["persistentVolumeClaim"]["claimName"] == "out"
    assert volumes[mounts["/code"]]["persistentVolumeClaim"]["claimName"] == "code"


ASKING: dict[str, dict[str, Any]] = {
    "gradient accumulation": {"accumulate": 3},
    "mixed_bfloat16": {"precision": "mixed_bfloat16"},
    "mixed_float16": {"precision": "mixed_float16"},
    "class weights": {"classWeights": {"0": 1}},
    "recompute": {"recompute": ["block_*"]},
    "jit: replica": {"jit": "replica"},
    "allReduce: float16": {"allReduce": "float16"},
    "placement": {"placement": {"encoder_*": 0}},
    "deterministic": {"deterministic": True},
    "a profile": {"profile": {"steps": [5, 8]}},
    "data without an end": {"data": {"stepsPerEpoch": 5}},
}
"""The techniques of SUPPORT that a job may ask for."""


@pytest.mark.parametrize("strategy", REPLICAS)
def test_the_operator_refuses_what_the_trainer_does_not_do_under_a_strategy(strategy: str) -> None:
    """By the trainer's SUPPORT table, which the trainer itself looks up for what the model is compiled with alone."""
    spec = {"strategy": strategy, "replicaSpecs": REPLICAS[strategy]}
    env, refused = environment(pod_of(job(MINIMAL, **spec))), trainer_side.refused()
    differ = {}
    for technique, more in ASKING.items():
        asked = {**MINIMAL, **more}
        by_trainer = trainer_side.pod(json.dumps(asked), env)
        by_operator = parse_job(job(asked, **spec))
        if isinstance(by_operator, JobSpec) == (strategy in refused[technique]) or "error" in by_trainer:
            differ[technique] = by_trainer, by_operator
    assert differ == {}
