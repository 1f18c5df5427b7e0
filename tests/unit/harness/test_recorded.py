"""The recorder finds a decision that has changed."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from unittest.mock import patch

import pytest
from tests.harness import recorded
from tests.harness.driver import play
from tests.harness.scenarios import SCENARIOS

from tfgpujob.core import reconcile
from tfgpujob.core.policies import success


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recorded") / "pairs.gz"
    with recorded.recording(path):
        play(SCENARIOS["multi-worker"])
    return path


def test_each_question_is_kept_once_and_answered_alike(file: Path) -> None:
    pairs = [*recorded.recorded(file)]
    assert len({before for _, before in pairs}) > 5
    assert len({repr(asked) for asked, _ in pairs}) == len(pairs)
    assert not any(recorded.replay(pairs))


def test_another_outcome_is_found(file: Path) -> None:
    with patch.object(success, "STRAGGLER_GRACE", timedelta(seconds=31)):
        found = [line for lines in recorded.replay(recorded.recorded(file)) for line in lines]
    assert any(line.startswith("/outcome/requeue_at: ") for line in found)


def test_another_last_status_is_found(file: Path) -> None:
    with patch.object(reconcile, "COALESCE", timedelta(seconds=11)):
        found = [line for lines in recorded.replay(recorded.recorded(file)) for line in lines]
    assert any(line.startswith("/update/requeue_at: ") for line in found)
