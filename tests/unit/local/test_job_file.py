"""Reading a file as `kubectl apply -f` would, with the operator's own refusals."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tfgpujob.cli import main as cli
from tfgpujob.cli.verbs.run import _job_of_script
from tfgpujob.exits import CliError, Exit
from tfgpujob.local.job_file import read_job, read_jobs, read_objects
from tfgpujob.local.yaml_lines import line_of

ROOT = Path(__file__).resolve().parents[3]


VALID = (
    "{kind: TFGPUJob, apiVersion: tfgpu.dev/v1alpha1, metadata: {name: a}, "
    "spec: {strategy: OneDevice, image: b, replicaSpecs: {worker: {}}}}"
)


def write(path: Path, text: str) -> str:
    file = path / "job.yaml"
    file.write_text(text)
    return str(file)


def test_the_job_among_other_objects() -> None:
    found = read_job(str(ROOT / "examples/digits-checkpointed.yaml"), "team")
    assert found.job["metadata"] == {"name": "digits-checkpointed", "namespace": "team"}
    assert [obj["kind"] for obj in found.others] == ["PersistentVolumeClaim"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: [", "is no YAML: line 1: "),
        ("a: b\n  c: d", "is no YAML: line 2: mapping values are not allowed here; correct the indentation"),
        ("a:\n\tb: c", "line 2: (.*); indent with spaces"),
        ("\na: %b", "line 2: (.*); put quotes around the value"),
        ("a: b\tc", "line 1: (.*); correct the indentation, or put quotes around a value that has a tab"),
        ("\na: b\x07", "line 2: character 0x7 is not allowed; correct it"),
        ('{"a": 1}\n{"b": 2}', "line 2: (.*); write a line with --- between two objects"),
        ("text", "each document, or item of a List, must be a Kubernetes object"),
        ("", "holds nothing; it must hold a TFGPUJob"),
        ("a: b", "holds an object without a kind; it must hold a TFGPUJob"),
        ("kind: Pod", "holds Pod; it must hold a TFGPUJob"),
        ("kind: TfGpuJob", "holds TfGpuJob; write kind: TFGPUJob"),
        ("base: {a: b}\n---\nkind: TFGPUJob", "holds an object without a kind, with base; add its kind"),
        ("kind: TFGPUJob", "apiVersion: is missing; write tfgpu.dev/v1alpha1"),
        (f"{VALID}\n---\n{VALID}", "holds several jobs named a; give each a name of its own"),
        ("kind: TFGPUJob\nkind: TFGPUJob", "line 2: kind is there a second time: keep one of them$"),
        ("kind: TFGPUJob\n{{ a }}: b", "such as by helm template$"),
        ("{kind: TFGPUJob, apiVersion: kubeflow.org/v1}", "write tfgpu.dev/v1alpha1"),
        ("{kind: TFGPUJob, apiVersion: tfgpu.dev/v1alpha1, metadata: {name: a}}", "spec: is missing"),
        ("{kind: TFGPUJob, apiVersion: tfgpu.dev/v1alpha1, metadata: {name: 1e3}}", "metadata.name: 1000 is a number"),
        ("{kind: TFGPUJob, apiVersion: tfgpu.dev/v1alpha1, metadata: [a]}", "metadata: this is a list"),
        (
            "{kind: TFGPUJob, apiVersion: tfgpu.dev/v1alpha1, metadata: {name: a, labels: {a: on}, lables: {}}}",
            r"metadata.labels.a: true is a yes-or-no value(.|\n)*metadata.lables: .*did you mean labels\?",
        ),
    ],
)
def test_what_is_no_job_is_refused_with_what_to_do(text: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(CliError, match=problem) as caught:
        read_job(write(tmp_path, text))
    assert caught.value.code == Exit.USAGE


def test_a_file_in_another_encoding_is_to_be_saved_as_utf_8(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_bytes(b"kind: TFGPUJob # caf\xe9")
    with pytest.raises(CliError, match="save it as UTF-8"):
        read_job(str(file))


def test_a_job_is_read_as_kubectl_reads_it(tmp_path: Path) -> None:
    """Learning rates without a point, keys that are numbers, and labels that YAML 1.1 takes for booleans."""
    text = """\
apiVersion: tfgpu.dev/v1alpha1
kind: TFGPUJob
metadata:
  name: a
  annotations: {2024: x}
  labels:
    on: "x"
spec:
  strategy: OneDevice
  replicaSpecs: {worker: {}}
  trainer:
    {entrypoint: digits, globalBatchSize: 64, epochs: 1, classWeights: {0: 8e-1, 1: 8}, params: {r: 1e-3, t: 12:30}}
"""
    found = read_job(write(tmp_path, text))
    assert found.job["metadata"]["labels"] == {"true": "x"}
    assert found.job["metadata"]["annotations"] == {"2024": "x"}
    trainer = found.job["spec"]["trainer"]
    assert (trainer["classWeights"], trainer["params"]) == ({"0": 0.8, "1": 8}, {"r": 0.001, "t": "12:30"})
    assert line_of(text, 0, "metadata.labels[true]") == 7


BOMB = "\n".join(["a0: &a0 [x, x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 30))])
MERGED = "\n".join(["a0: &a0 {x: 1}", *(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}" for n in range(1, 30))])
TEXT = f"a: &a {'x' * 100_000}\nb: [{', '.join(['*a'] * 100)}]"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"kind: ConfigMap\n{BOMB}", "by its aliases"),
        (MERGED, "by its aliases"),
        (TEXT, "by its aliases"),
        ("a: &a [*a]", "nested more than 100 levels|by its aliases"),
        pytest.param(f"a: {'[' * 5000}", "is nested too deeply; write no more than 100 levels", marks=pytest.mark.slow),
        (f"a: {'[' * 120}{']' * 120}", "is nested more than 100 levels deep"),
    ],
)
def test_what_would_fill_the_memory_is_refused_before_it_does(text: str, problem: str, tmp_path: Path) -> None:
    file = write(tmp_path, text)
    for read in (read_jobs, read_objects):
        with pytest.raises(CliError, match=problem) as caught:
            read(file)
        assert caught.value.code == Exit.USAGE


def test_a_large_file_and_its_anchors_are_read(tmp_path: Path) -> None:
    text = "kind: ConfigMap\nshared: &shared {a: 1}\nothers: [*shared, {<<: *shared, b: 2}]\ndata:\n"
    found = read_objects(write(tmp_path, text + "\n".join(f"  k{n}: {'x' * 100}" for n in range(5000))))
    assert found[0]["others"] == [{"a": 1}, {"a": 1, "b": 2}]
    assert len(found[0]["data"]) == 5000


def test_every_problem_has_a_line(tmp_path: Path) -> None:
    text = """{kind: TFGPUJob, apiVersion: tfgpu.dev/v1alpha1, metadata: {name: A},
               spec: {strategy: Mirored, replicaSpecs: {worker: {}}}}"""
    with pytest.raises(CliError) as caught:
        read_job(write(tmp_path, text))
    assert len(str(caught.value).splitlines()) == 2


def test_an_error_names_the_line_of_its_field_or_of_what_should_hold_it(tmp_path: Path) -> None:
    text = """\
---
---
# a comment
kind: TFGPUJob
apiVersion: tfgpu.dev/v1alpha1
metadata:
  name: a
spec:
  strategy: MultiWorkerMirrored
  image: x
  replicaSpecs:
    worker:
      replicas: -1
      template:
        metadata:
          labels:
            tfgpu.dev/attempt: "1"
        spec:
          containers:
          - {name: other, image: o}
          - name: tensorflow
            restartPolicy: Always
  gpu: {perReplicas: 2}
  runPolicy:
    suspend: "yes"
  trainer:
    epochs: 2
"""
    with pytest.raises(CliError) as caught:
        read_job(write(tmp_path, text))
    lines = dict(re.findall(r"job\.yaml:(\d+): ([^:]+):", str(caught.value)))
    assert lines == {
        "13": "spec.replicaSpecs.worker.replicas",
        "23": "spec.gpu.perReplicas",
        "25": "spec.runPolicy.suspend",
        "26": "spec.trainer.entrypoint",
    }
    spec = text.replace("-1", "2").replace("perReplicas", "perReplica").replace('"yes"', "true")
    with pytest.raises(CliError) as caught:
        read_job(write(tmp_path, spec.replace("  trainer:\n    epochs: 2\n", "")))
    lines = dict(re.findall(r"job\.yaml:(\d+): ([^:]+):", str(caught.value)))
    template = "spec.replicaSpecs.worker.template"
    assert lines == {
        "17": f"{template}.metadata.labels[tfgpu.dev/attempt]",
        "22": f"{template}.spec.containers[1].restartPolicy",
    }


TWO = """
apiVersion: v1
kind: List
items:
- {kind: ConfigMap, apiVersion: v1, metadata: {name: code}}
- kind: TFGPUJob
  apiVersion: tfgpu.dev/v1alpha1
  metadata: {name: first}
  spec: {strategy: OneDevice, image: x, replicaSpecs: {worker: {}}}
---
kind: TFGPUJob
apiVersion: tfgpu.dev/v1alpha1
metadata: {name: second}
spec: {strategy: OneDevice}
"""


def test_the_jobs_of_a_list_and_of_several_documents(tmp_path: Path) -> None:
    with pytest.raises(CliError) as caught:
        read_jobs(write(tmp_path, TWO))
    assert str(caught.value).startswith(f"{tmp_path / 'job.yaml'}:14: second: spec.replicaSpecs: is missing")
    whole = TWO.replace("{strategy: OneDevice}", "{strategy: OneDevice, image: x, replicaSpecs: {worker: {}}}")
    found = read_jobs(write(tmp_path, whole))
    assert [job_file.job["metadata"]["name"] for job_file in found] == ["first", "second"]
    assert {obj["kind"] for job_file in found for obj in job_file.others} == {"ConfigMap"}
    with pytest.raises(CliError, match="holds 2 jobs: first, second; give each a file of its own"):
        read_job(write(tmp_path, whole))


def test_host_access_is_for_the_operator_to_allow(tmp_path: Path) -> None:
    text = """{kind: TFGPUJob, apiVersion: tfgpu.dev/v1alpha1, metadata: {name: a},
               spec: {strategy: OneDevice, image: x, replicaSpecs:
               {worker: {template: {spec: {hostNetwork: true}}}}}}"""
    assert read_job(write(tmp_path, text)).job["metadata"]["name"] == "a"


MODULE = "def model(): ...\ndef data(split): ...\n"


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (["gone.py"], Exit.NOT_FOUND, "gone.py: No such file"),
        (["my_net.py"], Exit.USAGE, "my_net.py is a Python file; make a job of it: tfgpu submit"),
        (["nothing.py"], Exit.USAGE, "nothing.py has no function model() and data(), and calls no fit"),
        (
            ["job.yaml", "--requirements", "a"],
            Exit.USAGE,
            "--requirements is for a Python file; write it into job.yaml",
        ),
        (["job.yaml", "--workers", "2"], Exit.USAGE, "--workers is for a Python file; write it into job.yaml"),
        (["job.yaml", "--gpus", "0"], Exit.USAGE, "--gpus is for a Python file; write it into job.yaml"),
    ],
)
def test_what_run_takes_is_a_job_or_a_plain_script(
    arguments: list[str],
    code: int,
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my_net.py").write_text(MODULE)
    Path("nothing.py").write_text("raise RuntimeError('run')")
    assert cli.main(["run", *arguments, "--local"]) == code
    assert line in capsys.readouterr().err


def test_what_run_is_given_after_the_dashes_are_the_arguments_of_a_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("model.fit(1)")
    trainer = _job_of_script(tmp_path / "train.py", 2, 1, None, ("--epochs", "2", "a b")).spec.trainer
    assert trainer is not None
    assert trainer.args == ("--epochs", "2", "a b")


def test_a_notebook_is_named_with_the_ways_to_train_from_it() -> None:
    with pytest.raises(CliError, match=r"a\.ipynb is a notebook; make a Python file of it .* or call tfgpujob"):
        read_jobs("a.ipynb")


def test_a_script_runs_in_its_folder_or_in_one_above_it(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    file = tmp_path / "src/train.py"
    file.write_text("model.fit(x)")
    for code, entrypoint in ((None, "train.py"), (tmp_path, "src/train.py"), (tmp_path / "other", "train.py")):
        trainer = _job_of_script(file, 1, 1, None, (), code=code).spec.trainer
        assert trainer is not None
        assert trainer.entrypoint == entrypoint


def test_a_python_file_is_no_job_and_the_command_that_makes_one_needs_no_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    Path("my_net.py").write_text(MODULE)
    with pytest.raises(CliError, match=r"my_net\.py is a Python file; make a job of it: tfgpu ") as caught:
        read_job("my_net.py")
    words, file = str(caught.value).partition("tfgpu ")[2].split(" > ")
    assert cli.main(words.split()) == Exit.OK
    Path(file).write_text(capsys.readouterr().out)
    made = read_job(file)
    assert (file, made.job["metadata"]["name"]) == ("my_net.yaml", "my-net")
    assert [obj["data"] for obj in made.others] == [{"my_net.py": MODULE}]


def test_no_file() -> None:
    with pytest.raises(CliError, match="No such file") as caught:
        read_job("nowhere.yaml")
    assert caught.value.code == Exit.NOT_FOUND
