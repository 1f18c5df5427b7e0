"""Where a run's files are, alone and on a claim, and that nothing is gone on with, or lost, in silence."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.cli.typed import typed

from tfgpujob.cli import main as cli
from tfgpujob.exits import CliError, Exit
from tfgpujob.local.folder import Folder, claim_of


def opened(path: Path, claim: str | None = None, *, predicts: bool = False) -> Folder:
    folder = Folder(path, claim, predicts=predicts)
    folder.open()
    return folder


def test_alone_a_run_has_all_in_its_folder(tmp_path: Path) -> None:
    folder = opened(tmp_path / "runs/digits")
    assert folder.output == folder.path
    assert not folder.holds_a_run()
    (folder.output / "checkpoints/step-0000000012").mkdir(parents=True)
    (folder.output / "checkpoints/step-0000000012/COMMIT").touch()
    assert folder.holds_a_run()
    assert folder.last_step() == 12
    assert folder.set_aside() == [tmp_path / "runs/digits.1"]
    assert (tmp_path / "runs/digits.1/checkpoints").exists()


def test_a_claim_is_one_folder_for_all_jobs_that_name_it(tmp_path: Path) -> None:
    train, predict = opened(tmp_path / "runs/train", "out"), opened(tmp_path / "runs/predict", "out", predicts=True)
    assert train.output == predict.output == tmp_path / "runs/claims/out"
    (train.output / "checkpoints").mkdir()
    assert train.holds_a_run()
    assert not predict.holds_a_run(), "what the other job has written is its input"


def test_starting_anew_on_a_claim_renames_what_this_kind_of_run_has_written(tmp_path: Path) -> None:
    train, predict = opened(tmp_path / "runs/train", "out"), opened(tmp_path / "runs/predict", "out", predicts=True)
    for name in ("checkpoints", "predictions"):
        (train.output / name).mkdir()
    assert predict.set_aside() == [tmp_path / "runs/predict.1", tmp_path / "runs/claims/out/predictions.1"]
    assert (train.output / "checkpoints").exists()
    assert train.set_aside() == [tmp_path / "runs/train.1", tmp_path / "runs/claims/out.1"]
    assert opened(tmp_path / "runs/train", "out").set_aside() == [tmp_path / "runs/train.2"], "nothing was in the claim"


def test_a_job_that_is_named_like_the_claims_folder_does_not_get_it(tmp_path: Path) -> None:
    with pytest.raises(CliError, match=r"runs/claims: the claims of all runs are in it"):
        Folder(tmp_path / "runs/claims")


def kept(path: Path, phase: str, **trainer: object) -> Folder:
    job = {"metadata": {"name": path.name}, "spec": {"strategy": "OneDevice", "trainer": trainer}}
    folder = Folder(path, claim_of(job))
    folder.open()
    folder.keep({**job, "status": {"phase": phase}})
    return folder


def test_the_runs_of_this_machine_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "there is no run in runs/; tfgpu run FILE --local makes one" in typed(capsys, "list", "--local").err
    going, done = (
        kept(tmp_path / "runs/going", "Running"),
        kept(tmp_path / "runs/done", "Succeeded", output={"claim": "o"}),
    )
    (done.output / "checkpoints/step-0000000012").mkdir(parents=True)
    (done.output / "checkpoints/step-0000000012/COMMIT").touch()
    (tmp_path / "runs/strange").mkdir()

    def rows() -> list[list[str]]:
        capsys.readouterr()
        assert cli.main(["list", "--local"]) == Exit.OK
        return [line.split() for line in capsys.readouterr().out.splitlines()[1:]]

    assert rows() == [
        ["done", "Succeeded", "12", "OneDevice", "runs/claims/o"],
        ["going", "Running", "-", "OneDevice", "runs/going"],
    ]
    assert going._lock is not None
    going._lock.close()
    assert rows()[1][1] == "Stopped", "no tfgpu holds it"
    assert cli.main(["list", "--local", "-A"]) == Exit.USAGE
