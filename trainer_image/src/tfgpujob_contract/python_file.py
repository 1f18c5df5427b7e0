"""The kind of a Python file, by its source: a module with model() and data(split), a script that calls fit(), or a
program with a training loop of its own. The command line reads it before a file is sent, the trainer before it is run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Final

_FUNCTIONS: Final = ("model", "data")
_CALLS: Final = ("fit", "evaluate", "predict")
_TUNERS: Final = ("keras_tuner", "kerastuner")
"""Packages whose search() calls fit()."""
_LOOPS: Final = frozenset(
    {
        "GradientTape",
        "train_on_batch",
        "experimental_distribute_dataset",
        "distribute_datasets_from_function",
        "experimental_run_v2",
    }
)
"""Names that hand-written training loops use."""
_NOT_RUN: Final = {
    "fit_generator": ("calls fit_generator(), which Keras 3 does not have", "call fit(): it takes generators"),
    "placeholder": ("is written for TensorFlow 1", "train by fit() or with a GradientTape"),
    "torch": ("is a PyTorch program", "write it with TensorFlow or Keras"),
}
"""By names that a file of no kind uses: what it is, and the fix."""
_COORDINATORS: Final = frozenset({"ClusterCoordinator"})
_DISTRIBUTIONS: Final = frozenset({"DataParallel", "ModelParallel"})
"""Classes of keras.distribution with which a script divides its model."""
_SERVED: Final = "ParameterServerStrategy"
LIBRARY: Final = "tfgpujob_trainer"


class Kind(StrEnum):
    """Kinds of Python files, as shown to users."""

    MODULE = "a module with model() and data()"
    SCRIPT = "a script: the trainer runs its fit(), evaluate() and predict()"
    SERVED_SCRIPT = "a script for parameter servers: the trainer runs its fit(), evaluate() and predict()"
    LOOP = "a program with a training loop of its own, which runs as it is"
    COORDINATOR = "a program with a ClusterCoordinator of its own, which runs as it is"


OWN_LOOPS: Final = frozenset({Kind.LOOP, Kind.COORDINATOR})
"""Kinds that train without fit()."""


class FileError(ValueError):
    """A file that is of no kind: the problem, and the fix if there is one."""

    def __init__(self, problem: str, fix: str = "") -> None:
        super().__init__(f"{problem}: {fix}" if fix else problem)
        self.problem, self.fix = problem, fix


def is_script(file: Path) -> bool:
    """True if the file is a script, False if it is a module. Raises FileError if it is neither."""
    return kind_of(file) is not Kind.MODULE


def kind_of(file: Path) -> Kind:
    """The kind of the file, without running it. Raises FileError if it is none of these.

    A file that defines or imports both functions is a module, whatever else it does. One that hides its imports behind
    a `*` is a module unless it calls fit() or divides a model, and has neither function itself. Any other is a script
    if it, or a module beside it that it imports, does so or has its own training loop.
    """
    tree = _parsed(file)
    functions = set(_bound(tree.body))
    fits = _calls(tree)
    trains = (fits or _divides(tree)) and functions.isdisjoint(_FUNCTIONS)
    # `*` may import both functions, or only Keras' layers, as in many notebooks.
    if functions >= {*_FUNCTIONS} or ("*" in functions and not trains):
        return Kind.MODULE
    trees = [tree, *(one for _, one in _imported(file, tree))]
    names = set[str]().union(*map(_names, trees))
    if any(map(_divides, trees)):
        return Kind.SCRIPT
    if not any(_calls(one, ("fit",)) for one in trees):
        if names & _COORDINATORS:
            return Kind.COORDINATOR
        if names & _LOOPS or LIBRARY in names or ("run" in names and any(n.endswith("Strategy") for n in names)):
            return Kind.LOOP
    if any(_calls(one) for one in trees):
        # One that names others too chooses among them.
        served = {name for name in names if name.endswith("Strategy")} == {_SERVED}
        return Kind.SERVED_SCRIPT if served else Kind.SCRIPT
    for name, (what, fix) in _NOT_RUN.items():
        if name in names:
            raise FileError(f"{file.name} {what}", fix)
    missing = " and ".join(f"{name}()" for name in _FUNCTIONS if name not in functions)
    raise FileError(
        f"{file.name} has no function {missing}, and calls no {', '.join(_CALLS)} by itself",
        "define model() and data(split), or write a script that calls model.fit() or has a loop with a GradientTape, "
        "itself or in a module beside it",
    )


def is_divided(file: Path) -> bool:
    """True if the file, or a module beside it that it imports, divides a model by keras.distribution."""
    tree = _parsed(file)
    return any(map(_divides, (tree, *(one for _, one in _imported(file, tree)))))


def imported_beside(file: Path) -> list[str]:
    """Names of the files and folders beside it that a Python file imports, directly or indirectly."""
    folder = file.absolute().parent
    places = (place.absolute() for place, _ in _imported(file, _parsed(file)))
    found = {place.relative_to(folder).parts[0] for place in places if place.is_relative_to(folder)}
    return sorted(found - {file.name})


def named_beside(file: Path) -> list[str]:
    """Names of files and folders beside a Python file that a text in it, or in its imports, has: its data."""
    tree = _parsed(file)
    nodes = (node for one in (tree, *(one for _, one in _imported(file, tree))) for node in ast.walk(one))
    texts = (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))
    named = {text.removeprefix("./").partition("/")[0] for text in texts}
    return sorted(named & {path.name for path in file.absolute().parent.iterdir()} - {file.name})


def names_by_file(file: Path) -> list[set[str]]:
    """Attributes, names and modules that the file uses, then those of each module beside it that it imports."""
    tree = _parsed(file)
    return [set(_names(one)) for one in (tree, *(one for _, one in _imported(file, tree)))]


def _parsed(file: Path) -> ast.Module:
    try:
        return ast.parse(file.read_bytes(), str(file))
    except (SyntaxError, ValueError) as error:
        line = (error.text or "").strip() if isinstance(error, SyntaxError) else ""
        place = f", at {file.name}:{error.lineno}" if isinstance(error, SyntaxError) else ""
        problem = error.msg if isinstance(error, SyntaxError) else error
        if line.startswith(("%", "!")):
            raise FileError(
                f"{line} is a notebook's command{place}", "remove all lines that begin with % or !"
            ) from error
        raise FileError(f"{file.name} is no Python file: {problem}{place}") from error


def _bound(body: list[ast.stmt]) -> Iterator[str]:
    """Names of functions, classes and imports at module level; `*` if an import hides its names."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda | ast.Name):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.If | ast.Try | ast.With):
            yield from _bound([*node.body, *getattr(node, "orelse", ())])


def _names(tree: ast.Module) -> Iterator[str]:
    """Attributes, names, modules and packages that the file uses."""
    from_any = "*" in _bound(tree.body)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Name):
            if from_any:  # `*` may have imported it
                yield node.id
        elif isinstance(node, ast.ImportFrom):
            yield from (node.module or "").split(".")
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (part for alias in node.names for part in alias.name.split("."))


def _divides(tree: ast.Module) -> bool:
    names = {*_names(tree)}
    return "distribution" in names and not names.isdisjoint(_DISTRIBUTIONS)


def _calls(tree: ast.Module, calls: Sequence[str] = _CALLS) -> bool:
    called = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return any(isinstance(f, ast.Attribute) and f.attr in calls for f in called) or any(map(_is_tuner, ast.walk(tree)))


def _is_tuner(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").split(".")[0] in _TUNERS
    return isinstance(node, ast.Import) and any(alias.name.split(".")[0] in _TUNERS for alias in node.names)


def _imported(script: Path, tree: ast.Module) -> Iterator[tuple[Path, ast.Module]]:
    """The modules beside the script that it imports, directly or indirectly, with their files."""
    seen, left = {script}, [(script, tree)]
    while left:
        for place in _places(*left.pop(), script.parent):
            if place in seen:
                continue
            seen.add(place)
            with suppress(SyntaxError, ValueError, OSError, RecursionError):  # Python says it, if it is ever imported
                if place.is_file():
                    left.append((place, ast.parse(place.read_bytes())))
                    yield left[-1]


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
