"""Which public methods of Keras' classes the trainer calls, as Keras does: `python -m tests.trainer.hooks --write`.

hook_script.py overrides each, and is run by plain Keras and by the trainer under every strategy. A method that plain
Keras calls and the trainer doesn't is refused by name, or WHY says why.
"""

from __future__ import annotations

import inspect
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import keras
import numpy as np
from tests.trainer import differential, harness
from tests.trainer.inprocess import prepare
from tests.trainer.mutants import ROOT
from tests.trainer.servers import ServerJob

SCRIPT = Path(__file__).parent / "hook_script.py"
PAGE = ROOT / "docs/reference/hooks.md"
HEAD = """# Hooks of Keras' classes

Methods that a subclass may override, and that plain Keras calls in `fit`, `evaluate` or `predict`. The table says
whether the trainer calls them too, or refuses a class that overrides them, by their name. It is made by overriding
each, training, and noting what is called.

"""
_ORDER = "under ParameterServer steps end in no order. The log says so."
_METRICS = "under ParameterServer workers, which do not wait, would overwrite each other's metrics."
WHY = {
    **{
        f"Callback.on_{when}": _ORDER
        for of in ("batch", "test_batch", "train_batch")
        for when in (f"{of}_begin", f"{of}_end")
    },
    **{f"Model.make_{kind}_function": f"override `{kind}_step`." for kind in ("predict", "test", "train")},
    **{f"Model.{kind}_step": _METRICS for kind in ("test", "train")},
}
"""Why a hook is not called, or refused."""
Strategy = Callable[[str, Path], tuple[Path, str, bool]]
"""Runs hook_script.py for these hooks; the file of what was called, the log, and whether it came to its end."""


def methods_of_model() -> list[str]:
    """The public methods of keras.Model."""
    names = [name for name in dir(keras.Model) if not name.startswith("_")]
    return [name for name in names if inspect.isfunction(inspect.getattr_static(keras.Model, name))]


def by_keras(hooks: str, folder: Path) -> tuple[Path, str, bool]:
    """Plain Keras."""
    with mock.patch.dict("os.environ", HOOKS=hooks):
        return folder / "program.npz", "", differential.plainly(_copy(folder)) is not None


def here(devices: int) -> Strategy:
    """The trainer in this process."""

    def run(hooks: str, folder: Path) -> tuple[Path, str, bool]:
        with mock.patch.dict("os.environ", HOOKS=hooks):
            found = differential.by_trainer(_copy(folder), devices)
        return folder / f"{devices}.npz", found.log, found.found is not None

    return run


def by_workers(hooks: str, folder: Path) -> tuple[Path, str, bool]:
    """Two workers."""
    with mock.patch.dict("os.environ", HOOKS=hooks):
        first, _ = differential.by_workers(_copy(folder))
    return folder / "worker-0.npz", first.log, first.found is not None


def by_servers(hooks: str, folder: Path) -> tuple[Path, str, bool]:
    """A chief, a worker and a parameter server."""
    path, found = _copy(folder), folder / "chief.npz"
    environment = {**harness.pod_environment(), "HOOKS": hooks, "FOUND": str(found)}
    with harness.launcher(folder, environment=environment) as launch, mock.patch.object(harness, "MODULE", path):
        job = ServerJob(launch, {"entrypoint": path.name, "output": {"directory": str(folder / "out")}}, workers=1)
        ends = [task for name, task in job.tasks.items() if not name.startswith("ps")]
        harness.until(lambda: any(task.process.poll() is not None for task in ends))
        first = next(task for task in ends if task.process.poll() is not None)
        return found, first.log, first.wait() == 0 and job.chief.wait() == 0


STRATEGIES: dict[str, Strategy] = {
    "one worker": here(1),
    "two workers": by_workers,
    "Mirrored": here(2),
    "ParameterServer": by_servers,
}


def called(strategy: Strategy, hooks: list[str]) -> tuple[set[str], dict[str, str]]:
    """What a strategy calls, and what it says of the hooks of keras.Model that it refuses."""
    names: set[str] = set()
    refused: dict[str, str] = {}
    while hooks:
        with tempfile.TemporaryDirectory(prefix="hooks-") as folder:
            file, log, done = strategy(",".join(hooks), Path(folder))
            if file.exists():
                with np.load(file) as found:
                    names |= set(found["called"].tolist())
        if done:
            break
        last = re.findall(r"^hook (\w+)$", log, re.MULTILINE)[-1]
        refused[f"Model.{last}"] = log.strip().splitlines()[-1]
        hooks = hooks[hooks.index(last) + 1 :]
    return names, refused


def table(strategies: dict[str, Strategy]) -> Iterator[list[str]]:
    """A row for each hook that plain Keras calls, with a cell for each strategy."""
    by_plain, _ = called(by_keras, methods_of_model())
    of_model = [name.removeprefix("Model.") for name in sorted(by_plain) if name.startswith("Model.")]
    found = [called(strategy, of_model) for strategy in strategies.values()]
    for name in sorted(by_plain):
        yield [name, *("yes" if name in names else "refused" if name in refused else "no" for names, refused in found)]


def page() -> str:
    """The page of the documentation."""
    rows = list(table(STRATEGIES))
    lines = ["| hook | " + " | ".join(STRATEGIES) + " |", "|---" * (len(STRATEGIES) + 1) + "|"]
    lines += [f"| `{name}` | {' | '.join(cells)} |" for name, *cells in rows]
    missed = [name for name, *cells in rows if set(cells) != {"yes"}]
    return HEAD + "\n".join([*lines, "", *(f"- `{name}`: {WHY[name]}" for name in missed)]) + "\n"


def _copy(folder: Path) -> Path:
    path = folder / "program.py"
    path.write_text(SCRIPT.read_text())
    return path


def main() -> int:
    """Write the page, or say whether it is what the trainer does."""
    prepare()
    text = page()
    if "--write" in sys.argv:
        PAGE.write_text(text)
    return 0 if text == PAGE.read_text() else 1


if __name__ == "__main__":
    sys.exit(main())
