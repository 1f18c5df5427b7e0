"""Where a run's files are, alone and on a claim, and that nothing is gone on with, or lost, in silence."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfgpujob.exits import CliError
from tfgpujob.local.folder import Folder


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
