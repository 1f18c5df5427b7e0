"""Ten bugs planted in the trainer, one at a time, and the file of `make test` that must fail for each.

    python -m tests.trainer.mutants       all of them; one line of JSON at the end

What is taken away from the tests must leave each of them caught. test_mutants.py (deep) plays them too.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "trainer_image/src"


@dataclass(frozen=True, slots=True)
class Mutant:
    """A bug: `new` in the place of `old`, which stands once in `file`."""

    name: str
    file: str
    """Within the package."""
    old: str
    new: str
    caught_by: str
    """The file of tests/trainer that must fail, and after a blank the tests of it that do, for speed.

    Of the bugs of differential.py: what a program that finds it has, as a regular expression."""
    more: tuple[tuple[str, str], ...] = ()
    """Other places of the file, and what stands there in place of them."""

    @property
    def edits(self) -> tuple[tuple[str, str], ...]:
        """All places, with what stands there instead."""
        return ((self.old, self.new), *self.more)


MUTANTS = (
    Mutant(
        "clip each replica's gradients before the all-reduce",
        "step/synchronous.py",
        '        message = self._message(groups, votes, own_seconds, weight)\n        message["gradients"]',
        "        clip = self._takeover.optimizer._clip_gradients\n"
        "        gradients = [clip(group) for group in gradients]\n"
        '        message = self._message(groups, votes, own_seconds, weight)\n        message["gradients"]',
        "test_exactness.py clipnorm",
    ),
    Mutant(
        "leave moving statistics as the sum over replicas",
        "model/moving_statistics.py",
        "variable.assign(total / tf.cast(replicas[0], total.dtype) if replicas else total)",
        "variable.assign(total)",
        "test_exactness.py statistics",
    ),
    Mutant(
        "leave the weight regularisers out of the gradient",
        "step/synchronous.py",
        "regularisers() if self._loss.regularised else []",
        "[]",
        "test_exactness.py mirrored_equals",
    ),
    Mutant(
        "drop the last batch of an epoch where it is short",
        "data/schedule.py",
        "return -(-self.rows // self.global_batch_size) - (1 if self.leftover else 0)",
        "return max(1, self.rows // self.global_batch_size)",
        "test_data.py",
    ),
    Mutant(
        "draw the same order in each epoch",
        "data/schedule.py",
        "np.random.default_rng([self.seed, epoch])",
        "np.random.default_rng([self.seed])",
        "test_data.py",
    ),
    Mutant(
        "forget the last micro-batch of a step",
        "step/gradient_accumulation.py",
        "index < tf.shape(edges)[0] - 1",
        "index < tf.shape(edges)[0] - 2",
        "test_exactness.py accumulated_micro_batches",
    ),
    Mutant(
        "draw the same Dropout mask on each replica",
        "model/replica_seeds.py",
        "replica * _STRIDE",
        "0 * _STRIDE",
        "test_replica_seeds.py",
    ),
    Mutant(
        "publish a checkpoint without COMMIT",
        "checkpoints/store.py",
        "        replace_file(path / COMMIT, json.dumps(",
        "        str(json.dumps(",
        "test_checkpoint.py saved",
    ),
    Mutant(
        "train the rows of an epoch again after a resume",
        "train/run.py",
        '**state["position"], "loss": loss})',
        '**state["position"], "index": 0, "loss": loss})',
        "test_checkpoint_manager.py resumes",
    ),
    Mutant(
        "write over a newer attempt's checkpoints",
        "checkpoints/store.py",
        "        if current is not None and current != self._owner:\n            raise self._fenced(current)",
        "        if current is None:\n            return",
        "test_checkpoint.py older_writer",
    ),
)


@contextmanager
def planted(*mutants: Mutant) -> Iterator[dict[str, str]]:
    """An environment whose trainer has these bugs. Raises ValueError where one can't be planted."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        copy = Path(folder) / "src"
        shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        for mutant in mutants:
            changed = copy / "tfgpujob_trainer" / mutant.file
            text = changed.read_text()
            for old, new in mutant.edits:
                if text.count(old) != 1:
                    raise ValueError(f"{mutant.file} has {text.count(old)} places to plant: {mutant.name}")
                text = text.replace(old, new)
            changed.write_text(text)
        yield {**os.environ, "PYTHONPATH": os.pathsep.join([str(copy), str(ROOT)])}


def fails(mutant: Mutant) -> bool:
    """Whether the named tests fail with that bug."""
    file, _, chosen = mutant.caught_by.partition(" ")
    with planted(mutant) as environment:
        command = [sys.executable, "-m", "pytest", f"tests/trainer/{file}", "-x", "-q", "-m", "not deep"]
        run = subprocess.run(
            [*command, *(("-k", chosen) if chosen else ())],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if run.returncode not in (0, 1):
            raise ValueError(f"the tests did not run: {run.stdout[-1000:]}{run.stderr[-1000:]}")
        return run.returncode == 1


def main() -> int:
    """See the module's docstring."""
    caught = {mutant.name: fails(mutant) for mutant in MUTANTS}
    for name, found in caught.items():
        print("caught" if found else "NOT CAUGHT", name, file=sys.stderr)
    figures = {"planted": len(caught), "planted_found": sum(caught.values())}
    print(json.dumps({"name": "mutants", "ok": all(caught.values()), **figures}))
    return 0 if all(caught.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
