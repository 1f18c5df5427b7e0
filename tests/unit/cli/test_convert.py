"""`tfgpu convert` on files, folders and lists."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.pages import ROOT, typed_by
from tests.unit.cli.typed import typed

from tfgpujob.api import JobSpec, parse_job
from tfgpujob.cli import main as cli
from tfgpujob.exits import Exit


def tfjob(name: str, **roles: int) -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "tensorflow", "image": "train:1"}]}}
    specs = {role: {"replicas": count, "template": template} for role, count in roles.items()}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {"name": name},
        "spec": {"tfReplicaSpecs": specs},
    }


CLAIM = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"}}


def test_a_folder_with_lists_and_other_objects(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    (source / "deep").mkdir(parents=True)
    (source / "a.yaml").write_text(yaml.safe_dump_all([tfjob("a", Worker=2), CLAIM]))
    listed = {"apiVersion": "v1", "kind": "List", "items": [tfjob("b", chief=1), tfjob("c", WORKER=1)]}
    (source / "deep/b.json").write_text(yaml.safe_dump(listed))
    (source / "notes.txt").write_text("not YAML: [")
    assert "3 TFJobs read" in typed(capsys, "convert", str(source), "-d", str(target)).err
    assert sorted(str(p.relative_to(target)) for p in target.rglob("*.yaml")) == ["a.yaml", "deep/b.yaml"]
    first, second = yaml.safe_load_all((target / "a.yaml").read_text())
    assert isinstance(parse_job(first), JobSpec)
    assert second == CLAIM
    assert "# advice: spec.tfReplicaSpecs: strategy is Custom" in (target / "a.yaml").read_text()
    assert [d["metadata"]["name"] for d in yaml.safe_load_all((target / "deep/b.yaml").read_text())] == ["b", "c"]


NESTED = {
    "apiVersion": "kubeflow.org/v1beta1",
    "kind": "Experiment",
    "spec": {"trial": [{"spec": tfjob("a", Worker=1)}]},
}
TEXT = {
    "kind": "Workflow",
    "spec": {"templates": [{"resource": {"manifest": 'kind: "TFJob"\nmetadata: {name: {{inputs.name}}}\n'}}]},
}


@pytest.mark.parametrize(
    ("obj", "where"),
    [(NESTED, "Experiment, spec.trial[0].spec"), (TEXT, "Workflow, spec.templates[0].resource.manifest")],
)
def test_a_tfjob_inside_of_another_object_is_found(
    obj: dict[str, Any], where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(obj))
    assert cli.main(["convert", str(tmp_path / "a.yaml")]) == Exit.USAGE
    assert f"a.yaml: {where}; put it into a file of its own" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("version", "kind"),
    [("tensorflow.org/v1alpha1", "TfJob"), ("training.kubedl.io/v1alpha1", "TFJob"), ("", "TFJob")],
)
def test_tfjobs_of_other_groups_are_read(
    version: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.yaml").write_text(yaml.safe_dump({**tfjob("a", Worker=2), "apiVersion": version, "kind": kind}))
    assert yaml.safe_load(typed(capsys, "convert", str(tmp_path / "a.yaml")).out)["kind"] == "TFGPUJob"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("kind: TFJob\nspec:\n  Worker: 1\n  Worker: 2\n", "line 4: Worker is there a second time: keep one of them"),
        (
            "kind: TFJob\nmetadata: {name: {{ .Values.name }}}\n",
            "line 2: {{ … }} is a template of Helm or Argo: render it",
        ),
        ("kind: TFJob\n{{- if .Values.gpu }}\nspec: {}\n", "line 2: {{ … }} is a template of Helm or Argo: render it"),
        ("kind: TFJob\n- {{x}}: 1\n", "line 2: {{ … }} is a template"),
        ("kind: TFJob\nspec: {? [a] : 1}\n# {{x}}\n", "line 2: a key is no text"),
    ],
)
def test_what_is_no_yaml_yet_is_named(
    text: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.yaml").write_text(text)
    assert problem in typed(capsys, "convert", str(tmp_path / "a.yaml"), code=Exit.USAGE).err


def test_standard_output_is_a_file_that_can_be_applied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text(yaml.safe_dump_all([tfjob("a", Worker=2), tfjob("b", Worker=1)]))
    jobs = list(yaml.safe_load_all(typed(capsys, "convert", "--strategy", "MultiWorkerMirrored", str(file)).out))
    assert [job["metadata"]["name"] for job in jobs] == ["a", "b"]
    assert {job["spec"]["strategy"] for job in jobs} == {"MultiWorkerMirrored"}


def test_a_refusal_names_the_job_and_the_others_are_converted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text(yaml.safe_dump_all([tfjob("lonely", PS=1), tfjob("fine", Worker=1)]))
    said = typed(capsys, "convert", str(file), code=Exit.USAGE)
    assert f"{file}: lonely: refused: spec.tfReplicaSpecs: without a chief" in said.err
    assert [d["metadata"]["name"] for d in yaml.safe_load_all(said.out) if d] == ["fine"]


def test_a_file_that_is_no_yaml_is_named_and_the_others_are_converted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder with a Helm chart in it."""
    (tmp_path / "chart.yaml").write_text("kind: TFJob\nmetadata: {name: {{ .Release.Name }}}\n")
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(tfjob("fine", Worker=1)))
    said = typed(capsys, "convert", str(tmp_path), code=Exit.USAGE)
    assert f"{tmp_path / 'chart.yaml'} is no YAML" in said.err
    assert [d["metadata"]["name"] for d in yaml.safe_load_all(said.out) if d] == ["fine"]


def test_the_commands_of_the_migration_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "tests/cases/tfjobs", "old-jobs")
    shutil.copy("old-jobs/workers.yaml", "tfjob.yaml")
    for _, *words in typed_by(__file__):
        assert cli.main(words) == Exit.OK
    for file in Path("old-jobs").iterdir():
        jobs = [
            d for d in yaml.safe_load_all((tmp_path / "new-jobs" / file.name).read_text()) if "strategy" in d["spec"]
        ]
        assert jobs
        assert all(isinstance(parse_job(job), JobSpec) for job in jobs)


def test_nothing_to_convert(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.yaml").write_text(yaml.safe_dump_all([CLAIM, {**tfjob("a"), "kind": "PyTorchJob"}]))
    assert "no TFJob in " in (said := typed(capsys, "convert", str(tmp_path), code=Exit.NOT_FOUND).err)
    assert f"only {CLAIM['kind']}, PyTorchJob;" in said
    (tmp_path / "a.yaml").write_text(yaml.safe_dump({**tfjob("a"), "apiVersion": "example.com/v1"}))
    assert "only TFJob of example.com/v1;" in typed(capsys, "convert", str(tmp_path), code=Exit.NOT_FOUND).err


def test_a_list_of_what_is_no_object_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in.yaml").write_text("apiVersion: v1\nkind: List\nitems: [null]\n")
    assert cli.main(["convert", str(tmp_path / "in.yaml")]) == Exit.USAGE
    assert "holds None; each document, or item of a List, must be a Kubernetes object" in capsys.readouterr().err


def test_labels_that_no_pod_has_any_more_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = tfjob("spread", Worker=1)
    name, role = "training.kubeflow.org/job-name", "training.kubeflow.org/replica-type"
    selector = {"matchExpressions": [{"key": name, "operator": "In", "values": ["spread"]}]}
    term = {"labelSelector": selector, "topologyKey": "kubernetes.io/hostname"}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["affinity"] = affinity
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}}
    service["spec"] = {"selector": {role: "worker"}}
    (tmp_path / "jobs.yaml").write_text(yaml.safe_dump_all([job, service]))
    assert cli.main(["convert", str(tmp_path / "jobs.yaml")]) == Exit.OK
    comments = [line for line in capsys.readouterr().out.splitlines() if line.startswith("#") and "selects" in line]
    text = "selects pods by training.kubeflow.org/{0}, which none has here: write tfgpu.dev/{0}"
    assert comments == [
        f"# changed: spec.tfReplicaSpecs.Worker.template.spec.affinity: {text.format('job-name')}",
        f"# changed: Service: {text.format('replica-type')}",
    ]
