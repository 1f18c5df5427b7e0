"""Distinguishes a plain training script, or a program with its own loop, from a module with model() and data(), by
parsing the file without running it.

A script builds and compiles a model and calls fit() itself (script/); a module defines functions that the trainer
calls.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from tfgpujob_trainer.contract import config, entrypoint
from tfgpujob_trainer.contract.environment import Environment
from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.contract.spec import TrainerConfig

_FUNCTIONS = ("model", "data")
_CALLS = ("fit", "evaluate", "predict")
_TUNERS = ("keras_tuner", "kerastuner")
"""Packages whose search() calls fit()."""
_DISTRIBUTIONS = frozenset({"DataParallel", "ModelParallel"})
"""Classes of keras.distribution with which a script distributes its model."""
_LOOPS = frozenset(
    {"GradientTape", "experimental_distribute_dataset", "distribute_datasets_from_function", "experimental_run_v2"}
)
"""Names that hand-written training loops use."""
_COORDINATORS = frozenset({"ClusterCoordinator"})
_LIBRARY = "tfgpujob_trainer"
_OTHER_WAYS = frozenset({"dtensor", "distribution", "horovod", "Server"})
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
}
"""What the trainer's own loop does."""


def is_script(path: Path) -> bool:
    """True if the file is a script, False if it is a module. Raises ConfigError if it is neither, or not Python.

    A file that defines or imports both functions is a module, whatever else it does. One that hides its imports behind
    a `*` is a module unless it calls fit() and has neither function itself. Any other is a script if it, or a module
    beside it that it imports, calls fit() or has its own training loop.
    """
    tree = _parsed(path)
    functions = set(_functions(tree.body))
    fits = _calls(tree)
    # `*` may import both functions, or only Keras' layers, as in many notebooks.
    if functions >= {*_FUNCTIONS} or ("*" in functions and not (fits and functions.isdisjoint(_FUNCTIONS))):
        return False
    if fits or any(map(_calls, _imported(path, tree))) or has_own_loop(path):
        return True
    missing = " and ".join(f"{name}()" for name in _FUNCTIONS if name not in functions)
    raise ConfigError(
        f"trainer.entrypoint: {path.name} has no function {missing}, and calls no {', '.join(_CALLS)} by itself",
        "define model() and data(split), or write a script that calls model.fit() or has a loop with a GradientTape, "
        "itself or in a module beside it",
    )


def has_own_loop(path: Path) -> bool:
    """True if a script trains without fit(), by its own loop, in it or in a module beside it that it imports."""
    trees = _trees(path)
    if any(_calls(tree, ("fit",)) for tree in trees):
        return False
    names = {name for tree in trees for name in _names(tree)}
    runs = "run" in names and any(name.endswith("Strategy") for name in names)
    return bool(names & (_LOOPS | _COORDINATORS)) or _LIBRARY in names or runs


def starts_a_server(path: Path) -> bool:
    """True if such a program starts a tf.distribute.Server itself, as workers and parameter servers must."""
    return any("Server" in _names(tree) for tree in _trees(path))


def has_a_strategy(path: Path) -> bool:
    """True if such a program may train one model with other workers."""
    names = {name for tree in _trees(path) for name in _names(tree)}
    return bool(names & {_LIBRARY, *_OTHER_WAYS}) or any(name.endswith("Strategy") for name in names)


def heeds_stops(path: Path) -> bool:
    """True if such a program may handle a request to stop."""
    names = {name for tree in _trees(path) for name in _names(tree)}
    return bool(names & {_LIBRARY, "signal", "PreemptionCheckpointHandler"})


def _trees(path: Path) -> list[ast.Module]:
    tree = _parsed(path)
    return [tree, *_imported(path, tree)]


def _parsed(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes(), str(path))
    except (SyntaxError, ValueError) as error:
        place = f", at {path.name}:{error.lineno}" if isinstance(error, SyntaxError) else ""
        problem = error.msg if isinstance(error, SyntaxError) else error
        raise ConfigError(
            f"trainer.entrypoint: {path.name} is no Python file: {problem}{place}", "correct it"
        ) from error


def is_divided(path: Path) -> bool:
    """True if the script, or a module beside it that it imports, uses keras.distribution."""
    names = [set(_names(tree)) for tree in _trees(path)]
    return any("distribution" in of_one and of_one & _DISTRIBUTIONS for of_one in names)


def divides(path: Path, settings: TrainerConfig) -> bool:
    """The same, or if the job divides the script's model."""
    return config.is_divided(settings) or is_divided(path)


def _functions(body: list[ast.stmt]) -> Iterator[str]:
    """Names of functions, classes and imports at module level; `*` if an import hides its names."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda | ast.Name):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.If | ast.Try | ast.With):
            yield from _functions([*node.body, *getattr(node, "orelse", ())])


def _names(tree: ast.Module) -> Iterator[str]:
    """Attributes, names, modules and packages that the file uses."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from (node.module or "").split(".")
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (part for alias in node.names for part in alias.name.split("."))


def _calls(tree: ast.Module, calls: Sequence[str] = _CALLS) -> bool:
    return any(_is_call(node, calls) or _is_tuner(node) for node in ast.walk(tree))


def _is_call(node: ast.AST, calls: Sequence[str]) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in calls


def _is_tuner(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").split(".")[0] in _TUNERS
    return isinstance(node, ast.Import) and any(alias.name.split(".")[0] in _TUNERS for alias in node.names)


def _imported(script: Path, tree: ast.Module) -> Iterator[ast.Module]:
    """The modules beside the script that it imports, directly or indirectly."""
    seen, left = {script}, [(script, tree)]
    while left:
        for place in _places(*left.pop(), script.parent):
            if place in seen:
                continue
            seen.add(place)
            with suppress(SyntaxError, ValueError, OSError, RecursionError):  # Python says it, if it is ever imported
                if place.is_file():
                    left.append((place, ast.parse(place.read_bytes())))
                    yield left[-1][1]


def _places(file: Path, tree: ast.Module, folder: Path) -> Iterator[Path]:
    """Where Python looks for the file's imports: below the folder of the script, or beside the file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            start, found = folder, [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above, module = [folder, *file.absolute().parents], node.module or ""
            start = above[min(node.level, len(above) - 1)]
            found = [module, *(f"{module}.{alias.name}".lstrip(".") for alias in node.names)]
        else:
            continue
        for name in found:
            place = start.joinpath(*name.split("."))
            yield from (place.parent / f"{place.name}.py", place / "__init__.py")


def find(settings: TrainerConfig, env: Environment) -> Path | None:
    """The path of a plain script; None if the entrypoint is a module. Runs nothing.

    Raises ConfigError for a script with settings that don't apply to it, and for a module without those that it needs.
    """
    path = entrypoint.file_of(settings.entrypoint, env.code_directory)
    if path is not None and is_script(path):
        _check(settings)
        if env.processes_per_gpu > 1 and has_own_loop(path):
            fix = "remove processesPerGpu, or train by fit()"
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
    script = f"the model of {settings.entrypoint} is divided by keras.distribution"
    if env.is_asynchronous or env.is_evaluator or env.processes_per_gpu > 1:
        raise ConfigError(
            f"{script}, and the job has parameter servers, an evaluator or processesPerGpu",
            "use strategy MultiWorkerMirrored, or Mirrored with one worker, without them: --workers N --gpus N",
        )
    for name, wanted in _LEFT_TO_KERAS.items():
        if wanted(settings):
            raise ConfigError(f"trainer.{name} is set, and {script}", "remove it: fit() is Keras' own there")
