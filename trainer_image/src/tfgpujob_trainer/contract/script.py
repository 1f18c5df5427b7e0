"""A plain training script, or a program with its own loop: what its source shows, and which settings apply to it.

A script builds and compiles a model and calls fit() itself (script/); a module defines functions that the trainer
calls.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tfgpujob_contract import python_file
from tfgpujob_contract.python_file import LIBRARY, OWN_LOOPS, FileError, Kind, is_divided, names_by_file
from tfgpujob_contract.trainer_config import TrainerConfig
from tfgpujob_trainer.contract import config, entrypoint
from tfgpujob_trainer.contract.environment import Environment
from tfgpujob_trainer.contract.exits import ConfigError

_OTHER_WAYS = frozenset({"dtensor", "horovod", "Server"})
"""Names of ways to train one model with other workers, besides the strategies of tf.distribute."""
_IN_SCRIPT = {
    "params": "there is no model() and no data() to give them to: use args, which the script finds in sys.argv",
    "globalBatchSize": "fit(batch_size=...) says it",
    "epochs": "fit(epochs=...) says it",
    "steps": "fit(epochs=...) says how long to train",
    "classWeights": "fit(class_weight=...) says them",
    "evaluate.everyEpochs": "fit(validation_data=..., validation_freq=...) says it",
    "evaluate.everySteps": "fit(validation_data=..., validation_freq=...) says when",
    "best.monitor": "use keras.callbacks.EarlyStopping and ModelCheckpoint in the script",
    "data.stepsPerEpoch": "fit(steps_per_epoch=...) says it",
    "data.cache": "a dataset in the script has cache() itself, and arrays are in memory",
    "placement": "it needs model(), which the trainer calls",
    "initialWeights": "load them in the script: model.load_weights(...)",
    "newLayers": "load weights in the script: model.load_weights(..., skip_mismatch=True)",
}

_LEFT_TO_KERAS: dict[str, Callable[[TrainerConfig], bool]] = {
    "accumulate": lambda c: (c.accumulate or 1) > 1,
    "jit": lambda c: c.jit is not None,
    "allReduce": lambda c: c.all_reduce is not None,
    "communication": lambda c: c.communication is not None,
    "recompute": lambda c: bool(c.recompute),
    "remainder": lambda c: c.remainder is not None,
    "profile.steps": lambda c: c.profile.steps is not None,
    "export": lambda c: bool(c.export.saved_model or c.export.tflite or c.export.int8),
    "output.store": lambda c: c.output.store is not None,
    "checkpoint.everySeconds": lambda c: c.checkpoint.every_seconds is not None,
    "best.monitor": lambda c: c.best.monitor is not None,
    "evaluate.everySteps": lambda c: c.evaluate.every_steps is not None,
    "steps": lambda c: c.steps is not None,
    "initialWeights": lambda c: c.initial_weights is not None,
    "placement": lambda c: bool(c.placement),
}
"""What the trainer's own loop does; the last five are refused for any script."""


def kind_of(path: Path) -> Kind:
    """The kind of the file. Raises ConfigError if it is none, or not Python."""
    try:
        return python_file.kind_of(path)
    except FileError as error:
        raise ConfigError(f"trainer.entrypoint: {error.problem}", error.fix or "correct it") from error


def has_own_loop(path: Path) -> bool:
    """True if a script trains without fit(), by its own loop, in it or in a module beside it that it imports."""
    return kind_of(path) in OWN_LOOPS


def starts_a_server(path: Path) -> bool:
    """True if such a program starts a tf.distribute.Server itself, as workers and parameter servers must."""
    return "Server" in _names(path)


def has_a_strategy(path: Path) -> bool:
    """True if such a program may train one model with other workers."""
    names = _names(path)
    return bool(names & {LIBRARY, *_OTHER_WAYS}) or any(name.endswith("Strategy") for name in names)


def heeds_stops(path: Path) -> bool:
    """True if such a program may handle a request to stop."""
    return bool(_names(path) & {LIBRARY, "signal", "PreemptionCheckpointHandler"})


def _names(path: Path) -> set[str]:
    return set[str]().union(*names_by_file(path))


def divides(path: Path | None, settings: TrainerConfig) -> bool:
    """The same, or if the job divides the model of the script or module."""
    return config.is_divided(settings) or (path is not None and is_divided(path))


def find(settings: TrainerConfig, env: Environment) -> Path | None:
    """The path of a plain script; None if the entrypoint is a module. Runs nothing.

    Raises ConfigError for a script with settings that don't apply to it, and for a module without those that it needs.
    """
    path = entrypoint.file_of(settings.entrypoint, env.code_directory)
    if path is not None and kind_of(path) is not Kind.MODULE:
        _check(settings)
        if env.processes_per_gpu > 1 and has_own_loop(path):
            fix = "remove processesPerGpu, and ask for more workers where the device plugin shares each GPU"
            raise ConfigError(f"{path.name} has a training loop of its own: one process of it runs on a GPU", fix)
        if divides(path, settings):
            _check_divided(settings, env)
        if is_divided(path) and settings.mesh is not None:
            raise ConfigError(
                f"trainer.mesh is set, and {path.name} uses keras.distribution itself", "remove one of them"
            )
        return path
    if settings.args:
        fix = "use params: those go to model() and data()"
        raise ConfigError(f"trainer.args is set, and {settings.entrypoint} is no script", fix)
    if settings.mode == "train":
        for name, missing in (
            ("globalBatchSize", settings.global_batch_size is None),
            ("epochs", settings.epochs is None and settings.steps is None),
        ):
            if missing:
                fix = f"set it: only a script that calls fit() itself leaves {name} out"
                raise ConfigError(f"trainer.{name} is missing, and {settings.entrypoint} has model() and data()", fix)
        if divides(None, settings):
            _check_divided(settings, env)
    return None


def _check(settings: TrainerConfig) -> None:
    if settings.mode == "predict":
        fix = "give it model() and data('predict'), or train it: it may call predict() itself"
        raise ConfigError(f"trainer.mode is predict, and {settings.entrypoint} is a plain script", fix)
    for path, instead in _IN_SCRIPT.items():
        if config.is_set(settings, path):
            raise ConfigError(
                f"trainer.{path} is set, and {settings.entrypoint} is a plain script", f"remove it: {instead}"
            )


def _check_divided(settings: TrainerConfig, env: Environment) -> None:
    model = f"the model of {settings.entrypoint} is divided by keras.distribution"
    if env.is_asynchronous or env.is_evaluator or env.processes_per_gpu > 1:
        raise ConfigError(
            f"{model}, and the job has parameter servers, an evaluator or processesPerGpu",
            "use strategy MultiWorkerMirrored, or Mirrored with one worker, without them: --workers N --gpus N",
        )
    for name, wanted in _LEFT_TO_KERAS.items():
        if wanted(settings):
            raise ConfigError(f"trainer.{name} is set, and {model}", "remove it: fit() is Keras' own there")
