"""What is refused before anything starts, and what is said to have no effect."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tfgpujob.cli import main as cli
from tfgpujob.exits import CliError
from tfgpujob.local import preflight
from tfgpujob.local.job_file import JobFile, on_one_machine, read_job
from tfgpujob.local.preflight import check, code_folder, hidden_modules, ignored, unknown_entrypoint

ROOT = Path(__file__).resolve().parents[3]
OWN: dict[str, Any] = {"strategy": "OneDevice", "image": "x", "replicaSpecs": {"worker": {}}}
TRAINER = {"entrypoint": "train.py", "globalBatchSize": 8, "epochs": 1}


def job_file(folder: Path, spec: dict[str, Any], *others: dict[str, Any]) -> JobFile:
    job = {"apiVersion": "tfgpu.dev/v1alpha1", "kind": "TFGPUJob", "metadata": {"name": "a"}, "spec": spec}
    (folder / "job.yaml").write_text(yaml.safe_dump_all([job, *others]))
    return read_job(str(folder / "job.yaml"))


@pytest.mark.parametrize(
    ("more", "command", "problem"),
    [
        ({"runPolicy": {"suspend": True}}, ["x"], "spec.runPolicy.suspend: is true"),
        ({"managedBy": "kueue.x-k8s.io/multikueue"}, ["x"], "spec.managedBy: .*multikueue is another controller"),
        ({"runPolicy": {"managedBy": "a.b/c"}}, ["x"], "spec.runPolicy.managedBy: a.b/c is another controller"),
        ({}, [], "runs its image's own command.*-- python train.py"),
    ],
)
def test_jobs_that_cannot_run_here(more: dict[str, Any], command: list[str], problem: str, tmp_path: Path) -> None:
    with pytest.raises(CliError, match=problem):
        check(job_file(tmp_path, {**OWN, **more}), tmp_path, command)


def test_two_commands_are_one_too_many(tmp_path: Path) -> None:
    spec = {"strategy": "OneDevice", "replicaSpecs": {"worker": {}}, "trainer": TRAINER}
    with pytest.raises(CliError, match="keep one of them"):
        check(job_file(tmp_path, spec), tmp_path, ["python"])


@pytest.fixture
def trainer_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As if TensorFlow and the trainer were installed, of which only their files are looked at."""
    for package in ("tensorflow", "tfgpujob_trainer/builtin"):
        (tmp_path / "site" / package).mkdir(parents=True)
    for file in ("tensorflow/__init__.py", "tfgpujob_trainer/__init__.py", "tfgpujob_trainer/builtin/digits.py"):
        (tmp_path / "site" / file).touch()
    for module in [name for name in sys.modules if name.startswith("tfgpujob_trainer")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.syspath_prepend(tmp_path / "site")
    return tmp_path


def trained(folder: Path, entrypoint: str) -> None:
    trainer = {**TRAINER, "entrypoint": entrypoint}
    spec = {"strategy": "OneDevice", "replicaSpecs": {"worker": {}}, "trainer": trainer}
    check(job_file(folder, spec), folder, [])


def test_an_entrypoint_that_is_nowhere_is_refused_before_tensorflow_starts(trainer_here: Path) -> None:
    with pytest.raises(CliError, match="digitz is neither built-in nor a module in") as refused:
        trained(trainer_here, "digitz")
    assert "write digitz.py for a file, or name one of digits" in str(refused.value)
    (trainer_here / "mine.py").touch()
    for entrypoint in ("digits", "mine", "json.tool"):
        trained(trainer_here, entrypoint)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"trainer": {**TRAINER, "entrypoint": "digit"}}, "digit is not in the trainer's image; did you mean digits?"),
        ({"trainer": {**TRAINER, "entrypoint": "x.py"}}, "add spec.trainer.code, or name one of digits"),
        ({"trainer": {**TRAINER, "entrypoint": "digits"}}, None),
        ({"trainer": {**TRAINER, "code": {"configMap": {"name": "c"}}}}, None),
        ({"trainer": TRAINER, "image": "mine"}, None),
        ({"trainer": TRAINER, "replicaSpecs": {"worker": {"template": {"spec": {"volumes": []}}}}}, None),
        ({"image": "mine"}, None),
    ],
)
def test_an_entrypoint_that_nothing_brings_is_told_by_explain(
    spec: dict[str, Any], said: str | None, trainer_here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = job_file(trainer_here, {"strategy": "OneDevice", "replicaSpecs": {"worker": {}}, **spec})
    found = unknown_entrypoint(file.spec)
    assert found is said is None or (said is not None and said in str(found))
    assert cli.main(["explain", str(trainer_here / "job.yaml"), "-o", "json"]) == 0
    assert (found in json.loads(capsys.readouterr().out)["warnings"]) is (said is not None)


def test_a_syntax_error_is_said_with_its_line_before_tensorflow_starts(trainer_here: Path) -> None:
    (trainer_here / "train.py").write_text("def model():\n    return (1\n")
    with pytest.raises(CliError, match=r"train\.py, line 2: '\(' was never closed"):
        trained(trainer_here, "train.py")
    (trainer_here / "train.py").write_text("def model(): ...\n")
    trained(trainer_here, "train.py")


def test_code_comes_from_the_flag_else_the_files_own_config_map_else_beside_it(tmp_path: Path) -> None:
    spec = {
        "strategy": "OneDevice",
        "replicaSpecs": {"worker": {}},
        "trainer": {**TRAINER, "code": {"configMap": {"name": "code"}}},
    }
    code = {"kind": "ConfigMap", "metadata": {"name": "code"}, "data": {"train.py": "print()"}}
    file = job_file(tmp_path, spec, code)
    assert code_folder(file, Path("/given"), tmp_path, tmp_path / "s") == Path("/given")
    assert code_folder(job_file(tmp_path, spec), None, tmp_path, tmp_path / "s") == tmp_path
    folder = code_folder(file, None, tmp_path, tmp_path / "s")
    assert (folder / "train.py").read_text() == "print()"
    spec["trainer"]["code"]["configMap"]["paths"] = {"net..a.py": "net/a.py"}  # type: ignore[index]
    code["data"] = {"net..a.py": "x = 1", "left.py": ""}
    folder = code_folder(job_file(tmp_path, spec, code), None, tmp_path, tmp_path / "t")
    assert [str(path.relative_to(folder)) for path in folder.rglob("*.py")] == ["net/a.py"]
    assert list(ignored(file, None)) == []
    assert list(ignored(file, Path("/given"))) == [
        "spec.trainer.code (the files in /given are used)",
        "other objects in the file: ConfigMap code",
    ]


def test_wishes_that_only_a_cluster_grants_are_named(tmp_path: Path) -> None:
    container = {
        "name": "tensorflow",
        "resources": {},
        "env": [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}],
    }
    template = {"spec": {"containers": [container, {"name": "side", "image": "s"}], "tolerations": []}}
    spec = {
        "strategy": "OneDevice",
        "image": "x",
        "replicaSpecs": {"worker": {"template": template}},
        "trainer": {
            **TRAINER,
            "output": {"claim": "c"},
            "code": {"volume": {"claimName": "v"}},
            "models": {"image": "m:1"},
        },
        "runPolicy": {"ttlSecondsAfterFinished": 5},
    }
    claim = {"kind": "PersistentVolumeClaim", "metadata": {"name": "c"}}
    fields = "container side, env KEY (your shell's value is taken), resources, tolerations"
    assert list(ignored(job_file(tmp_path, spec, claim), Path("/here"))) == [
        "image (this Python runs)",
        "spec.trainer.code (the files in /here are used)",
        "spec.trainer.models (the folder models beside the code is used)",
        f"spec.replicaSpecs.worker.template: {fields}",
        "spec.runPolicy.ttlSecondsAfterFinished",
    ]


def test_there_are_no_spares_on_one_machine(tmp_path: Path) -> None:
    spec = {
        "strategy": "MultiWorkerMirrored",
        "replicaSpecs": {"worker": {"replicas": 2}},
        "trainer": {**TRAINER, "globalBatchSize": 8, "epochs": 1},
        "runPolicy": {"recovery": "InPlace", "spares": 1},
    }
    file = job_file(tmp_path, spec)
    assert "spec.runPolicy.spares" in ignored(file, Path("/here"))
    here = on_one_machine(file)
    assert (here.job["spec"]["runPolicy"], here.spec.run_policy.spares) == ({"recovery": "InPlace"}, None)
    assert on_one_machine(here) is here


def test_a_plain_job_has_nothing_to_ignore(tmp_path: Path) -> None:
    found = list(ignored(job_file(tmp_path, OWN), Path("/here")))
    assert found == ["image (this Python runs)"]


def commands_in(example: Path) -> list[list[str]]:
    lines = example.read_text().splitlines()
    return [shlex.split(line.removeprefix("#   ")) for line in lines if line.startswith("#   tfgpu run ")]


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_example_passes_by_itself_or_with_the_command_that_it_names(
    example: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "find_spec", lambda _: True)  # TensorFlow is not asked for here
    words = next(iter(commands_in(example)), ["tfgpu", "run", f"examples/{example.name}", "--local"])
    assert words[2] == f"examples/{example.name}"
    flags, _, command = " ".join(words).partition(" -- ")
    _, _, code = flags.partition(" --code ")
    check(read_job(str(example)), ROOT / (code or "examples"), command.split())


def test_files_that_hide_a_module_of_everybodys_are_named(tmp_path: Path) -> None:
    for name in ("json.py", "keras.py", "train.py"):
        (tmp_path / name).touch()
    assert hidden_modules(tmp_path) == ["json", "keras"]
