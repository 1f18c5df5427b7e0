"""Nothing of a TFJob is dropped in silence, and what comes of it is a job that the operator accepts."""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tfgpujob.api import JobSpec, gpus, parse_job
from tfgpujob.convert import Conversion, Effect, convert
from tfgpujob.core.advice import advice
from tfgpujob.names import Role
from tfgpujob_contract.strategies import Strategy

CASES = sorted((Path(__file__).resolve().parents[2] / "cases/convert").glob("*.yaml"))
OLDER_PLACES = {"cleanPodPolicy", "backoffLimit", "activeDeadlineSeconds"}


def leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every scalar with its path; an empty mapping or list says nothing."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(item, (*path, str(key)))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from leaves(item, (*path, f"[{i}]"))
    else:
        yield path, value


def written(path: tuple[str, ...]) -> str:
    return ".".join(path).replace(".[", "[")


def silent(tfjob: Mapping[str, Any], conversion: Conversion) -> list[str]:
    """Leaves of the TFJob that are neither in the job nor under any note."""
    noted = [note.field for note in conversion.notes]
    kept = [(tuple(p for p in path if not p.startswith("[")), value) for path, value in leaves(conversion.job)]
    missing = []
    for path, value in leaves({key: tfjob[key] for key in tfjob if key not in {"apiVersion", "kind"}}):
        text = written(path)
        if any(text == field or text.startswith((f"{field}.", f"{field}[")) for field in noted):
            continue
        if (_translated(path), value) in kept or _implied(path, value, kept):
            continue
        missing.append(f"{text} = {value!r}")
    return missing


def _translated(path: tuple[str, ...]) -> tuple[str, ...]:
    """Where the leaf stands in a TFGPUJob; list places are left out, since ports and variables may go."""
    if path[:2] == ("spec", "tfReplicaSpecs"):
        role = path[2].lower()
        path = ("spec", "replicaSpecs", "chief" if role == "master" else role, *path[3:])
    elif path[0] == "spec" and path[1] in OLDER_PLACES:
        path = ("spec", "runPolicy", *path[1:])
    return tuple(part for part in path if not part.startswith("["))


def _implied(path: tuple[str, ...], value: Any, kept: list[tuple[tuple[str, ...], Any]]) -> bool:
    """GPUs become a number of their own; the port of a TFJob is the operator's; "" and false are the defaults."""
    translated = _translated(path)
    gpus = ((*translated[:3], "gpus"), int(value)) if str(value).isdecimal() else None
    if "resources" in path and gpus in kept:
        return True
    if "ports" in path and value in {"tfjob-port", 2222}:
        return True
    return path[-1] in {"successPolicy", "enableDynamicWorker"} and not value


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_cases(case: Path) -> None:
    told = yaml.safe_load(case.read_text())
    before = copy.deepcopy(told["tfjob"])
    conversion = convert(told["tfjob"], Strategy(told.get("strategy", "Custom")))
    assert told["tfjob"] == before
    assert conversion.job == told.get("job")
    assert [str(note) for note in conversion.notes] == told["notes"]
    if conversion.job is not None:
        assert silent(told["tfjob"], conversion) == []
        assert isinstance(parse_job(conversion.job, allow_host=True), JobSpec)


def tfjob_of(gpus: int, **roles: int | None) -> dict[str, Any]:
    container: dict[str, Any] = {"name": "tensorflow", "image": "train:1"}
    if gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": gpus}}
    template = {"spec": {"containers": [container], "serviceAccountName": "trains"}}
    specs = {role: {"replicas": count, "template": template} for role, count in roles.items() if count is not None}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {"name": "a"},
        "spec": {"tfReplicaSpecs": specs},
    }


def followed(job: Mapping[str, Any], advice: str) -> Iterator[dict[str, Any]]:
    """The job after each of the ways that the advice leaves open."""
    for strategy in re.findall(r"(?:strategy:|or) (\w+)(?:,| for|:)", advice):
        changed = copy.deepcopy(dict(job))
        spec = changed["spec"]
        spec["strategy"] = strategy
        if "call it worker" in advice:
            spec["replicaSpecs"]["worker"] = spec["replicaSpecs"].pop("chief")
        if "add replicaSpecs.chief with the template of worker" in advice:
            spec["replicaSpecs"]["chief"] = {"template": spec["replicaSpecs"]["worker"]["template"]}
        if "remove runPolicy.restartScope" in advice:
            del spec["runPolicy"]["restartScope"]
        yield changed
    if "automountServiceAccountToken: false" in advice:
        changed = copy.deepcopy(dict(job))
        for replica in changed["spec"]["replicaSpecs"].values():
            replica["template"]["spec"]["automountServiceAccountToken"] = False
        yield changed


def test_each_advice_followed_is_accepted_without_a_warning() -> None:
    advised = set()
    counts = itertools.product((None, 1), (None, 0, 1, 3), (None, 1, 2), (None, 1), (0, 1, 2))
    for chief, worker, ps, evaluator, asked in counts:
        conversion = convert(tfjob_of(asked, Chief=chief, Worker=worker, PS=ps, Evaluator=evaluator))
        for note in conversion.notes if conversion.job else ():
            if note.effect is not Effect.ADVICE:
                continue
            changed = list(followed(conversion.job or {}, note.text))
            assert changed, note
            for job in changed:
                spec = parse_job(job, allow_host=True)
                assert isinstance(spec, JobSpec), (note, spec)
                assert list(advice(spec)) == [], note
                added = {Role.CHIEF} - {*map(str.lower, map(str, (conversion.job or {})["spec"]["replicaSpecs"]))}
                each = {gpus(spec, role, replica) for role, replica in spec.replica_specs.items() if role not in added}
                assert each == {asked}, note
                advised.add(job["spec"]["strategy"])
    assert advised == {*map(str, Strategy)}


def test_converting_twice_changes_nothing() -> None:
    for case in CASES:
        tfjob = yaml.safe_load(case.read_text())["tfjob"]
        assert convert(tfjob) == convert(tfjob)


text = st.text("abcxyz-", min_size=1, max_size=60)
scalars = st.one_of(st.none(), st.booleans(), st.integers(0, 9), text)
anything = st.recursive(scalars, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(text, inner, max_size=2))


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Any of these fields, and sometimes an unknown one."""
    known = st.fixed_dictionaries({}, optional=fields)
    return st.builds(lambda known, unknown: {**unknown, **known}, known, st.dictionaries(text, anything, max_size=1))


gpu = st.sampled_from(["nvidia.com/gpu", "amd.com/gpu", "nvidia.com/mig-1g.5gb", "cpu"])
amounts = st.dictionaries(gpu, st.sampled_from([1, "2", "1500m", 0]), max_size=2)
ports = st.lists(
    some(name=st.sampled_from(["tfjob-port", "web"]), containerPort=st.sampled_from([2222, 80])), max_size=2
)
container = some(
    image=text,
    command=st.lists(text, max_size=2),
    env=st.lists(st.fixed_dictionaries({"name": st.sampled_from(["TF_CONFIG", "A"]), "value": text}), max_size=2),
    ports=ports,
    resources=some(limits=amounts, requests=amounts),
).map(lambda fields: {"name": "tensorflow", "image": "i", **{k: v for k, v in fields.items() if v is not None}})
pod = some(
    restartPolicy=st.sampled_from(["Always", "Never"]),
    hostname=text,
    hostNetwork=st.booleans(),
    serviceAccountName=text,
    volumes=st.lists(st.fixed_dictionaries({"name": text, "hostPath": st.fixed_dictionaries({"path": text})})),
)
template = st.builds(
    lambda spec, one, metadata: {"metadata": metadata, "spec": {**spec, "containers": [one]}},
    pod,
    container,
    some(name=text, labels=st.dictionaries(text, text, max_size=2), creationTimestamp=st.none()),
)
replica = st.builds(
    lambda fields, template: {**fields, "template": template},
    some(replicas=st.integers(0, 4), restartPolicy=st.sampled_from(["Never", "OnFailure", "Always", "ExitCode"])),
    template,
)
roles = ["Chief", "Master", "MASTER", "Worker", "worker", "PS", "ps", "Evaluator"]
scheduling = some(minAvailable=st.integers(1, 9), queue=text, minResources=amounts, priorityClass=text)
policies = {
    "cleanPodPolicy": st.sampled_from(["None", "Running", "All", "", None]),
    "activeDeadlineSeconds": st.integers(1, 99),
    "backoffLimit": st.integers(0, 9),
}
run_policy = some(
    ttlSecondsAfterFinished=st.integers(0, 99),
    suspend=st.booleans(),
    managedBy=st.sampled_from(["kubeflow.org/training-operator", "kueue.x-k8s.io/multikueue"]),
    schedulingPolicy=scheduling,
    **policies,
)
of_v1 = some(
    runPolicy=run_policy,
    successPolicy=st.sampled_from(["", "AllWorkers"]),
    enableDynamicWorker=st.booleans(),
    tfReplicaSpecs=st.dictionaries(st.sampled_from(roles), replica, min_size=1, max_size=3),
    **policies,
)
tfjobs = st.builds(
    lambda metadata, spec, status: {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": metadata,
        "spec": spec,
        "status": status,
    },
    some(
        name=text,
        generateName=text,
        namespace=text,
        labels=st.dictionaries(text, text, max_size=2),
        annotations=st.dictionaries(text, text, max_size=2),
        uid=text,
    ),
    of_v1,
    anything,
)


@given(tfjobs)
def test_nothing_is_dropped_in_silence(tfjob: dict[str, Any]) -> None:
    conversion = convert(tfjob)
    refused = [note for note in conversion.notes if note.effect is Effect.REFUSED]
    assert (conversion.job is None) == bool(refused)
    if conversion.job is not None:
        assert silent(tfjob, conversion) == []
        assert isinstance(parse_job(conversion.job, allow_host=True), JobSpec)


@given(anything, st.sampled_from(list(Strategy)))
def test_whatever_it_is_given_it_answers(spec: Any, strategy: Strategy) -> None:
    conversion = convert({"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": {"name": "a"}, "spec": spec})
    assert conversion.job is None
    for roles_of in ("tfReplicaSpecs", "replicaSpecs"):
        assert convert({"kind": "TFJob", "metadata": spec, "spec": {roles_of: spec}}, strategy).job is None
