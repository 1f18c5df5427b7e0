"""The environment of a user's own program with a training loop. Does not import TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tfgpujob_contract.strategies import Strategy
from tfgpujob_contract.variables import Variable
from tfgpujob_trainer.contract.environment import Environment, read

ROUND_FOLDER = "TFGPU_ROUND_DIR"
"""The variable with the folder of a round, through which the trainer and the program exchange files."""
TF_CONFIG_FILE = "tf_config.json"
"""In that folder: TF_CONFIG of the round."""
STOPPABLE_FILE = "stoppable"
"""In it too: the program creates it when SIGTERM will stop it after a step."""


def environment(env: Mapping[str, str]) -> Environment:
    """The task's environment. If the job's strategy is Custom, it follows from TF_CONFIG, or the number of GPUs."""
    if env.get(Variable.STRATEGY, Strategy.CUSTOM) != Strategy.CUSTOM:
        return read(env)
    found = read({name: value for name, value in env.items() if name != Variable.STRATEGY})
    return found if found.traits.clustered or (found.gpus or 1) == 1 else replace(found, strategy=Strategy.MIRRORED)
