"""`make differential SECONDS=`: programs by chance, run by plain Keras and by the trainer, which must find the same.

Each is run by plain Keras and by the trainer on one and on two replicas of this process; one in twenty as two workers,
one in ten broken off in its first fit() and run again. Where the numbers differ, the log must have said so before
the first step. A program that fails is shrunk, and printed. Seeds continue from call to call.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import os
import re
import runpy
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import hypothesis
import keras
import numpy as np
import tensorflow as tf
from tests.trainer import harness
from tests.trainer.forking import ForkServer
from tests.trainer.grammar import Program, programs
from tests.trainer.inprocess import prepare, session_of
from tests.trainer.mutants import ROOT, Mutant, planted
from tests.trainer.reference import use_float

from tfgpujob_trainer.contract import config
from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.contract.support import SUPPORT
from tfgpujob_trainer.script.run import run_script
from tfgpujob_trainer.supervise.processes import training_environment

NEXT_SEED = ROOT / "build/differential.json"
BATCH_OF_PROGRAMS = 20
"""Programs of one seed."""
TOLERANCE = 1e-8
"""Relative to the largest number of an array, or to 1: float64 leaves 1e-16, and an optimizer divides by small
numbers."""
_REFUSED = 2
SAID = (
    *(one.reason for row in SUPPORT.values() for one in row.values() if one.kind in ("per worker", "bounded")),
    "its change by some rows does not follow from those by their halves",
    "each replica clips the gradients of its own rows",
    "no metric counts it, so plain Keras shows 0",
    "reset_state() keeps it; here each epoch and evaluation begins at zero",
    "its result() is a variable, so plain Keras shows",
    "which has a step less than Keras'",
    "begins at zero; Keras' first epoch adds to what was counted there before",
)
"""What the log says of a program whose numbers depend on how many replicas there are."""

Found = Mapping[str, np.ndarray]


class SilentError(AssertionError):
    """A program whose numbers differ, and nothing was said; or that plain Keras runs and the trainer does not."""


class _BrokenOffError(Exception):
    """In place of a kill."""


@dataclass(frozen=True, slots=True)
class Run:
    """How the trainer ran a program."""

    how: str
    found: Found | None
    log: str
    refused: bool = False


def play(program: Program) -> str:
    """Run a program by both; says how it went. Raises SilentError."""
    with tempfile.TemporaryDirectory(prefix="differential-") as name:
        folder = Path(name)
        path = folder / "program.py"
        path.write_text(program.source)
        expected = plainly(path)
        if expected is None:
            return "not Keras'"
        went = {judge(run, expected) for run in runs(program.mode, path)}
    return next(one for one in ("refused", "said", "equal") if one in went)


def runs(mode: str, path: Path) -> Iterator[Run]:
    """As the trainer runs it."""
    if mode == "workers":
        yield from by_workers(path)
    elif mode == "resumed":
        yield resumed(path)
    else:
        yield from (by_trainer(path, devices) for devices in (1, 2))


def judge(run: Run, expected: Found) -> str:
    """`equal`, `said` or `refused`; raises SilentError for anything else."""
    if run.refused:
        return "refused"
    if run.found is None:
        raise SilentError(f"{run.how}: plain Keras runs it, and the trainer ends with\n{run.log[-3000:]}")
    different = differences(run.found, expected)
    if not different:
        return "equal"
    if any(reason in run.log for reason in SAID):
        return "said"
    raise SilentError(f"{run.how}: {'; '.join(different[:5])}\n{run.log[-3000:]}")


def differences(found: Found, expected: Found) -> list[str]:
    """What differs, and by how much."""
    if found.keys() != expected.keys():
        return [f"found {', '.join(sorted(found))} for {', '.join(sorted(expected))}"]
    said = []
    for name, wanted in expected.items():
        if found[name].shape != wanted.shape:
            said.append(f"{name} has shape {found[name].shape} for {wanted.shape}")
        elif not np.allclose(
            found[name], wanted, rtol=0, atol=TOLERANCE * max(1.0, np.max(np.abs(wanted), initial=0.0)), equal_nan=True
        ):
            said.append(f"{name} is off by {np.max(np.abs(found[name] - wanted)):.2g}")
    return said


def plainly(path: Path) -> Found | None:
    """What plain Keras finds; None where it runs no such program."""
    with _fresh(path.with_suffix(".npz")), contextlib.redirect_stdout(io.StringIO()):
        try:
            runpy.run_path(str(path), run_name="__main__")
        except Exception:  # such as a callback for what the optimizer has not
            return None
    found = _read(path.with_suffix(".npz"))
    # The trainer ends at numbers that are not finite.
    numbers = [value for value in found.values() if value.dtype.kind in "fiu"]
    return found if all(np.isfinite(value).all() for value in numbers) else None


def by_trainer(path: Path, devices: int, *, output: str = "", step: int | None = None) -> Run:
    """What the trainer finds in this process; broken off after `step`."""
    where = path.parent / (output or f"of-{devices}")
    saves = {"everySteps": 2} if output else {"everyEpochs": 1000}
    settings = config.parse({"entrypoint": path.name, "output": {"directory": str(where)}, "checkpoint": saves})
    how, said, file = f"on {devices} replicas{output and ', resumed'}", io.StringIO(), path.parent / f"{devices}.npz"
    with _fresh(file), contextlib.redirect_stdout(said), _broken_off(step):
        try:
            run_script(path, session_of(settings, devices))
        except ConfigError as error:
            return Run(how, None, f"{said.getvalue()}{error}", refused=True)
        except Exception:
            return Run(how, None, f"{said.getvalue()}{traceback.format_exc()}")
    return Run(how, _read(file), said.getvalue())


def resumed(path: Path) -> Run:
    """Broken off after a checkpoint, and run again from the top."""
    first = by_trainer(path, 1, output="resumed", step=3)
    if first.found is not None or _BrokenOffError.__name__ not in first.log:  # it is shorter, or has failed
        return first
    return by_trainer(path, 1, output="resumed")


def by_workers(path: Path) -> Iterator[Run]:
    """Two processes."""
    if harness.forks is None:
        harness.forks = ForkServer(training_environment(harness.pod_environment()))
    files = [path.parent / f"worker-{index}.npz" for index in range(2)]
    own = {i: {"FOUND": str(file), "TFGPU_CODE_DIR": str(path.parent)} for i, file in enumerate(files)}
    with harness.launcher(path.parent) as launch:
        output = {"directory": str(path.parent / "of-workers")}
        tasks = launch.start_workers({"entrypoint": path.name, "output": output}, env=own)
        codes = [task.wait() for task in tasks]
    for index, (task, file) in enumerate(zip(tasks, files, strict=True)):
        done = codes == [0, 0]
        yield Run(f"worker {index} of 2", _read(file) if done else None, task.log, refused=_REFUSED in codes)


@contextlib.contextmanager
def _fresh(file: Path) -> Iterator[None]:
    """As in a process of its own, which writes what it finds to this file."""
    keras.utils.clear_session()
    use_float("float64")
    with mock.patch.dict(os.environ, FOUND=str(file)):
        yield


@contextlib.contextmanager
def _broken_off(step: int | None) -> Iterator[None]:
    loop: Any = importlib.import_module("tfgpujob_trainer.train.loop")
    after_step = loop.after_step

    def ended(run: Any, batch: Any, position: Any, **more: Any) -> Any:
        done = after_step(run, batch, position, **more)
        if position.step == step:
            run.checkpoints.wait()
            raise _BrokenOffError
        return done

    with mock.patch.object(loop, "after_step", ended) if step else contextlib.nullcontext():
        yield


def _read(file: Path) -> Found:
    with np.load(file) as arrays:
        return dict(arrays)


BUGS = (
    Mutant(
        "call the optimizer's apply in place of apply_gradients",
        "model/optimizer_takeover.py",
        "self.optimizer.apply_gradients(zip(gradients, variables, strict=True))",
        "self.optimizer.apply(list(gradients), list(variables))",
        "def apply_gradients",
    ),
    Mutant(
        "find no optimizers but the compiled one",
        "step/own_step.py",
        "for optimizer in optimizers_of(model).values():",
        "for optimizer in [*optimizers_of(model).values()][:1]:",
        r"self\.two = |self\.other = ",
        (
            ('mock.patch.object(keras.optimizers.Optimizer, "apply", unknown)', "contextlib.nullcontext(unknown)"),
            ("import mock\n", "import mock\n\nimport contextlib\n"),
        ),
    ),
    Mutant(
        "take what a layer keeps for a mean",
        "step/layer_states.py",
        "kind = kinds[0] if kinds else _nearly(state, trial)",
        'kind = "mean"',
        "class State",
    ),
    Mutant(
        "leave alone what a layer keeps that is not trainable",
        "step/layer_states.py",
        "if is_of_author(layer)]",
        "if is_of_author(layer) and layer.trainable]",
        r"State\(trainable=False",
    ),
    Mutant(
        "let workers end with unequal weights",
        "train/equal_weights.py",
        "    if not peers.differing(digest):\n",
        "    if peers.differing(digest) is not None:\n",
        "^workers(.|\n)*INDEX == 0 else",
    ),
    Mutant(
        "take a sum over the rows for a mean",
        "step/loss_trial.py",
        "if kinds == [SUM] and name not in known]",
        "if kinds == [] and name not in known]",
        r"ops\.sum\(ops\.square",
    ),
    Mutant(
        "let a loss couple the rows of a batch",
        "step/loss_trial.py",
        "for seen in [] if self._said else found:",
        "for seen in found[:0]:",
        r"var\(z|sqrt|logsumexp|\+ 1\)",
    ),
    Mutant(
        "leave the trial's counts in variables that are none of Keras'",
        "step/trial.py",
        "zip(self.variables, values, strict=True):\n            variable.assign(value)\n",
        "zip(self.variables, values, strict=True):\n"
        '            variable.name.startswith("Variable") or variable.assign(value)\n',
        r"assign_add\((1\.0|ops\.sum\(x\))\)\n +with",
    ),
    Mutant(
        "keep no variable that only the step or a callback has",
        "train/assemble.py",
        "variables_to_save(built.model, list(captured.values()))",
        "variables_to_save(built.model)",
        r"^resumed(.|\n)*(COUNTER|BETA)\.assign",
    ),
    Mutant(
        "give a row left over to the batch before",
        "data/splits.py",
        'remainder=settings.remainder or "step"',
        'remainder=settings.remainder or "carry"',
        "ROWS, BATCH, EPOCHS = (25, (8|6|12)|13, (6|12)|31, 6)",
    ),
    Mutant(
        "trace each fit() with the Python values of its time",
        "script/traced.py",
        "found = _Found(model) if kind not in self._values else None",
        "found: Any = _Found(model)",
        r"class Reads(.|\n)*initial_epoch=EPOCHS",
    ),
    Mutant(
        "trace the step before callbacks set Python values, and not again",
        "script/traced.py",
        "                self._is_late = True\n                del",
        "                del",
        "class Reads(.|\n)*def on_(epoch|train)_begin",
    ),
    Mutant(
        "compare a list that replaces another with itself",
        "script/traced.py",
        "            if (\n                not _alike(one.value, known[name].value)\n",
        "            if (\n                not isinstance(one.value, dict | list)\n"
        "                and not _alike(one.value, known[name].value)\n",
        r"reads\.parts(.|\n)*def on_epoch|def on_(epoch|train)_begin(.|\n)*reads\.parts",
    ),
    Mutant(
        "keep no Python values in checkpoints",
        "script/traced.py",
        "if one.can_be_kept and (one.name",
        "if False and (one.name",
        "^resumed(.|\n)*class Reads",
    ),
    Mutant(
        "let callbacks set what slots depend on as training begins",
        "script/traced.py",
        "                if changed:\n                    raise",
        "                if changed is None:\n                    raise",
        r"def on_train_begin\(self, logs=None\):\n +self\.model\.(optimizer =|layers)",
    ),
    Mutant(
        "keep the trainable flags of rows of another kind",
        "script/traced.py",
        "first.trained.get(first.kind,",
        "next(iter(first.trained.values()),",
        r"trainable = False; model\.fit",
    ),
    Mutant(
        "keep no arrays of callbacks",
        "script/callback_state.py",
        "if tf.as_dtype(value.dtype) == tf.string:",
        "if value.shape or tf.as_dtype(value.dtype) == tf.string:",
        r"^resumed(.|\n)*self\.(seen|mean) =",
    ),
    Mutant(
        "differentiate the parts of the loss on one replica",
        "step/synchronous.py",
        "self._alone = strategy.num_replicas_in_sync == takeover.accumulate == 1",
        "self._alone = False",
        "^here(.|\n)*custom_gradient",
    ),
    Mutant(
        "leave out that the result of a metric is a variable",
        "model/metrics.py",
        "if isinstance(value, keras.Variable)]",
        "if value is None]",
        "^here(.|\n)*(Rows|Largest)",
    ),
)


class Search:
    """Programs, one after the other, until one differs in silence."""

    def __init__(self, needs: str = "", *, prints: bool = False) -> None:
        """`needs`: a pattern; a program without it is only counted. `prints`: print what differs and continue."""
        self.went: Counter[str] = Counter()
        self._needs, self._prints = needs, prints
        self._began = time.monotonic()

    def of_seed(self, seed: int, most: int = BATCH_OF_PROGRAMS) -> str | None:
        """The smallest program that fails, and how; None if none of `most` fails."""

        @hypothesis.seed(seed)
        @hypothesis.settings(
            max_examples=most,
            database=None,
            deadline=None,
            phases=[hypothesis.Phase.generate, hypothesis.Phase.shrink],
            suppress_health_check=list(hypothesis.HealthCheck),
            report_multiple_bugs=False,
            verbosity=hypothesis.Verbosity.quiet,
        )
        @hypothesis.given(programs())
        def search(program: Program) -> None:
            if not re.search(self._needs, f"{program.mode}\n{program.source}"):
                self.went["left out"] += 1
                return
            try:
                self.went[play(program)] += 1
            except SilentError as error:
                self.went["silent"] += 1
                if not self._prints:
                    raise SilentError(f"# {program.mode}\n{program.source}\n# {error}") from None
                print(json.dumps({"programs": self.went.total(), "program": asdict(program)}), flush=True)
            finally:
                seconds = time.monotonic() - self._began
                how = ", ".join(f"{count} {went}" for went, count in self.went.most_common())
                print(f"{seconds:5.0f} s, seed {seed}: {how}", file=sys.stderr, flush=True)

        try:
            search()
        except SilentError as error:
            return str(error)
        return None


def main() -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, help="by default the one after the last run's")
    parser.add_argument("--most", type=int, default=10**9, help="programs")
    parser.add_argument("--needs", default="", help="leave out programs in which this pattern is not found")
    parser.add_argument("--prints", action="store_true", help="print each program that differs, and continue")
    parser.add_argument("--planted", nargs="?", const="", help="the bugs of BUGS that have this in their names")
    options = parser.parse_args()
    prepare()
    tf.get_logger().setLevel("ERROR")  # it warns of functions that are traced again, for each program
    if options.planted is not None:
        return find_planted([bug for bug in BUGS if options.planted in bug.name], options.most)
    seed, found, search, began = options.seed, None, Search(options.needs, prints=options.prints), time.monotonic()
    if seed is None:
        seed = json.loads(NEXT_SEED.read_text())["seed"] if NEXT_SEED.exists() else 0
    while found is None and search.went.total() < options.most and time.monotonic() - began < options.seconds:
        found = search.of_seed(seed)
        seed += 1
        if options.seed is None:
            NEXT_SEED.parent.mkdir(exist_ok=True)
            NEXT_SEED.write_text(json.dumps({"seed": seed}))
    print(found or "", file=sys.stderr)
    silent = search.went["silent"] if options.prints else int(found is not None)
    figures = {"programs": search.went.total(), "silent": silent, "how": search.went}
    print(json.dumps({"name": "differential", "ok": not silent, **figures}))
    return int(bool(silent))


def find_planted(bugs: Sequence[Mutant], most: int) -> int:
    """How many programs it takes until each planted bug is found: until one differs that does not without it."""
    found = {bug.name: _programs_until(bug, most) for bug in bugs}
    missed = [name for name, programs in found.items() if programs is None]
    for name, count in found.items():
        print(f"| {name} | {count or 'not found'} |", file=sys.stderr)
    figures = {"planted": len(found), "planted_found": len(found) - len(missed), "missed": missed}
    print(json.dumps({"name": "differential-planted", "ok": not missed, **figures}))
    return int(bool(missed))


def _programs_until(bug: Mutant, most: int) -> int | None:
    command = [sys.executable, "-W", "ignore", "-m", "tests.trainer.differential", "--prints", "--seed", "0"]
    command += ["--seconds", "inf", "--most", str(most), "--needs", bug.caught_by]
    with planted(bug) as env, subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        for line in run.stdout:
            told = json.loads(line)
            if "program" in told and not _differs(Program(**told["program"])):
                run.kill()
                print(f"found after {told['programs']} programs: {bug.name}", file=sys.stderr, flush=True)
                return int(told["programs"])
    return None


def _differs(program: Program) -> bool:
    try:
        play(program)
    except SilentError:
        return True
    return False


if __name__ == "__main__":
    sys.exit(main())
