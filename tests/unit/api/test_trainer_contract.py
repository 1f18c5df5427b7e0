"""spec.trainer is written by the operator and read by the trainer, which has its own copy of the names."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from tfgpujob.api import TrainerSpec
from tfgpujob.api.structural import structural

TRAINER = Path(__file__).parents[3] / "trainer_image" / "src"
SMALLEST = {"entrypoint": "digits", "globalBatchSize": 8, "epochs": 1}


@pytest.fixture
def trainer_config(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports no TensorFlow."""
    monkeypatch.syspath_prepend(str(TRAINER))
    return importlib.import_module("tfgpujob_trainer.contract.config")


def written(spec: dict[str, Any]) -> dict[str, Any]:
    model = TrainerSpec.model_validate(spec, by_alias=True, by_name=False)
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


def test_the_trainer_reads_what_the_operator_writes_and_has_the_same_defaults(trainer_config: Any) -> None:
    read = trainer_config.to_json(trainer_config.parse(written(SMALLEST)))
    alone = trainer_config.to_json(trainer_config.parse(SMALLEST))
    assert read == alone


def test_both_know_the_same_fields(trainer_config: Any) -> None:
    def names(schema: dict[str, Any]) -> Any:
        return {key: names(part) for key, part in schema.get("properties", {}).items()}

    def top(shape: Any) -> Any:
        return {key: top(value) if isinstance(value, dict) else {} for key, value in shape.items()}

    ours = names(structural(TrainerSpec))
    theirs = top(trainer_config.to_json(trainer_config.parse(SMALLEST)))
    # A source of code is absent by default, so its own fields don't show.
    for source in ours["code"]:
        ours["code"][source] = {}
    # So are models.
    ours["models"] = {}
    assert ours == theirs
