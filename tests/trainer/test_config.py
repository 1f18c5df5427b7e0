"""spec.trainer as JSON: what is accepted, and what each mistake is answered with."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from tests.trainer.harness import TELL_IMPORTS, imported

from tfgpujob_contract.trainer_config import to_json
from tfgpujob_trainer.contract import config
from tfgpujob_trainer.contract.exits import ConfigError

GOOD = {"entrypoint": "digits", "globalBatchSize": 128, "epochs": 20}


def test_defaults():
    settings = config.parse(GOOD)
    assert settings.seed == 0
    assert settings.remainder is None
    assert settings.output.directory == "/output"
    assert config.epochs_between_saves(settings.checkpoint) == 1
    assert settings.log_every_seconds == 10


def test_a_config_survives_its_own_json():
    settings = config.parse({**GOOD, "params": {"units": 3}, "checkpoint": {"everySteps": 5, "keep": 1}})
    assert config.parse(to_json(settings)) == settings


def test_saving_by_steps_alone_does_not_save_by_epochs():
    assert config.epochs_between_saves(config.parse({**GOOD, "checkpoint": {"everySteps": 5}}).checkpoint) is None


@pytest.mark.parametrize(
    ("change", "message", "fix"),
    [
        ({"globalBatchSiz": 1}, "trainer has no field 'globalBatchSiz'", "did you mean 'globalBatchSize'?"),
        ({"checkpoint": {"evrySteps": 1}}, "trainer.checkpoint has no field 'evrySteps'", "did you mean 'everySteps'?"),
        ({"globalBatchSize": "64"}, 'trainer.globalBatchSize is "64"', "it must be a whole number"),
        ({"globalBatchSize": True}, "trainer.globalBatchSize is true", "it must be a whole number"),
        ({"args": ["--epochs", 5]}, "trainer.args[1] is 5", "it must be a string"),
        ({"remainder": "carri"}, 'trainer.remainder is "carri"', "did you mean 'carry'?"),
        ({"profile": {"steps": [1, "a"]}}, 'trainer.profile.steps[1] is "a"', "it must be a whole number"),
        ({"profile": {"steps": 3}}, "trainer.profile.steps is 3", "it must be a list"),
        ({"output": "here"}, 'trainer.output is "here"', "it must be an object"),
    ],
)
def test_mistakes_name_the_field_and_the_fix(change, message, fix):
    with pytest.raises(ConfigError) as caught:
        config.parse({**GOOD, **change})
    assert str(caught.value) == message
    assert caught.value.fix.startswith(fix)


def test_overrides(tmp_path):
    path = tmp_path / "trainer.json"
    path.write_text(json.dumps(GOOD))
    settings = config.load(path, ["params.units=32", "params.name=abc", "epochs=3", "watchdog.stepSeconds=9"])
    assert settings.params == {"units": 32, "name": "abc"}
    assert settings.epochs == 3
    assert settings.watchdog.step_seconds == 9
    with pytest.raises(ConfigError, match="not of the form"):
        config.load(path, ["epochs"])


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"epoch": 3}, "trainer has no field 'epoch' (did you mean 'epochs'?) [exit 2, BadConfig]"),
        ({"entrypoint": "digit"}, "(did you mean 'digits'?) [exit 2, BadConfig]"),
        ({"entrypoint": "train.py"}, "there is no file /code/train.py"),
    ],
)
def test_a_bad_config_fails_before_tensorflow_is_imported(tmp_path, change, line):
    path = tmp_path / "trainer.json"
    path.write_text(json.dumps({**GOOD, **change}))
    ended = subprocess.run(
        [sys.executable, "-m", "tfgpujob_trainer.main", "--config", str(path)],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, **TELL_IMPORTS},
    )
    assert ended.returncode == 2
    assert line in ended.stderr
    assert imported("tfgpujob_trainer.contract.config", ended.stderr)
    assert not imported("tensorflow", ended.stderr)


def test_the_supervising_process_imports_no_tensorflow():
    code = "import sys, tfgpujob_trainer.main; print('tensorflow' in sys.modules, 'numpy' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "False False"
