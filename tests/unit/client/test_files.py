"""`tfgpu cp`: the pod that hands out what a job has written, and what arrives."""

from __future__ import annotations

import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.harness.live import LiveCluster
from tests.harness.scenario import job
from tests.machine import PATIENCE
from tests.trainer.harness import free_ports, until
from tests.unit.cli.typed import typed
from tests.unit.client.started import TRAINER, started

from tfgpujob.cli import main as cli
from tfgpujob.client import Client, TensorBoardError, tensorboard
from tfgpujob.client.viewer import PORT, files_pod
from tfgpujob.exits import Exit

Output = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("path", "places"),
    [
        ("model.keras", ["/output/files/model.keras", "/output/model.keras"]),
        ("logs/", ["/output/files/logs", "/output/logs"]),
        ("/output/run.json", ["/output/run.json"]),
    ],
)
def test_the_pod_looks_where_scripts_write_and_then_in_the_output(path: str, places: list[str]) -> None:
    pod = files_pod(started(), path)
    (container,) = pod["spec"]["containers"]
    assert container["command"][:2] == ["python", "-c"]
    assert container["command"][3:] == [str(PORT), ".tfgpu-code", *places]
    assert {"name": "tfgpu-output", "mountPath": "/output", "readOnly": True} in container["volumeMounts"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert pod["metadata"]["name"].startswith("curves-cp-")
    assert pod["spec"]["automountServiceAccountToken"] is False


def test_files_that_are_in_the_pod_alone_are_refused_with_the_reason() -> None:
    with pytest.raises(TensorBoardError) as refused:
        files_pod(started(trainer={**TRAINER, "output": {}}), "best.keras")
    assert "is kept inside the pod curves-worker-0, where no other pod can read it" in str(refused.value)
    assert "name a claim in spec.trainer.output.claim; while the pod is there: kubectl cp" in str(refused.value)
    assert "team/curves-worker-0:/output/files/best.keras best.keras" in str(refused.value)


def test_files_of_an_own_program_have_a_whole_path() -> None:
    with pytest.raises(TensorBoardError, match="name them by a path that begins with /"):
        files_pod(started(trainer=None), "model.keras")


@contextmanager
def handed_out(live: LiveCluster, folder: Path, path: str) -> Iterator[None]:
    """What the pod would run, on a folder of this machine in place of /output."""
    (container,) = files_pod(started(), path)["spec"]["containers"]
    _, option, program, _, *places = container["command"]
    (port,) = free_ports(1)
    here = [place.replace("/output", str(folder)) for place in places]
    process = subprocess.Popen([sys.executable, option, program, str(port), *here], stderr=subprocess.DEVNULL)
    live.front.listening[PORT] = port

    def listens() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=PATIENCE) as answer:
                return bool(answer.status == 204)
        except urllib.error.URLError:
            return False

    try:
        until(listens, PATIENCE)
        yield
    finally:
        del live.front.listening[PORT]
        process.kill()
        process.wait()


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """As a script has left it: large, nested, and with a link to code that is in the job's pods only."""
    files = tmp_path / "output/files"
    (files / "logs/train").mkdir(parents=True)
    (files / ".tfgpu-code").write_text("code.py")
    (files / "model.keras").write_bytes(bytes(range(256)) * 20_000)
    (files / "logs/train/events").write_text("events")
    (files / "logs/code.py").symlink_to("/code/code.py")
    (tmp_path / "output/run.json").write_text("{}")
    return tmp_path / "output"


def submit(live: LiveCluster, name: str, **output: str) -> None:
    trainer = {"entrypoint": "digits", "globalBatchSize": 64, "epochs": 1, "output": output}
    with Client() as client:
        client.submit(job(name, "OneDevice", worker=1, spec={"trainer": trainer}))
    live.until_running(name)


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorboard, "POLL_SECONDS", 0.05)


def test_a_file_and_a_folder_arrive_whole_and_the_pod_goes(
    live: LiveCluster, output: Path, tmp_path: Path, capsys: Output
) -> None:
    submit(live, "written", claim="out")
    mine = tmp_path / "mine"
    mine.mkdir()
    with handed_out(live, output, "model.keras"):
        assert cli.main(["cp", "written:model.keras", str(mine)]) == Exit.OK
    assert (mine / "model.keras").read_bytes() == (output / "files/model.keras").read_bytes()
    assert f"written:model.keras is copied to {mine}/model.keras" in capsys.readouterr().out
    with handed_out(live, output, "logs"):
        assert cli.main(["cp", "written:logs", str(mine / "of-run")]) == Exit.OK
    assert [str(path.relative_to(mine)) for path in sorted((mine / "of-run").rglob("*"))] == [
        "of-run/train",
        "of-run/train/events",
    ]
    with handed_out(live, output, "."):
        assert cli.main(["cp", "written:.", str(mine)]) == Exit.OK
    assert sorted(path.name for path in (mine / "written").iterdir()) == ["logs", "model.keras"]
    with handed_out(live, output, "run.json"):
        assert cli.main(["cp", "written:run.json", str(mine)]) == Exit.OK
    assert (mine / "run.json").read_text() == "{}"
    live.until(lambda: not [key for key in live.server.objects if "written-cp" in key[2]], "its pod is gone")


def test_a_file_that_is_not_there_is_named(live: LiveCluster, output: Path, tmp_path: Path, capsys: Output) -> None:
    submit(live, "missing", claim="out")
    with handed_out(live, output, "no.keras"):
        assert cli.main(["cp", "missing:no.keras", str(tmp_path)]) == Exit.NOT_FOUND
    assert "missing:no.keras: there is no such file" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["output"]
    live.until(lambda: not [key for key in live.server.objects if "missing-cp" in key[2]], "its pod is gone")


@pytest.mark.parametrize(
    ("source", "target", "said"),
    [
        ("train", ".", "train is not NAME:PATH"),
        ("train:/", ".", "train:/ is not NAME:PATH"),
        ("train:a", "missing/b", "missing: no such folder"),
        ("train:there", ".", "there is a folder that is there"),
    ],
)
def test_what_cannot_be_copied_is_refused_before_the_cluster_is_asked(
    source: str, target: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path)
    assert said in typed(capsys, "cp", source, target, code=Exit.USAGE).err


def test_a_job_without_a_claim_says_why_and_what_to_do(live: LiveCluster, tmp_path: Path, capsys: Output) -> None:
    submit(live, "fleeting-files")
    assert cli.main(["cp", "fleeting-files:model.keras", str(tmp_path)]) == Exit.USAGE
    assert "name a claim in spec.trainer.output.claim" in capsys.readouterr().err
