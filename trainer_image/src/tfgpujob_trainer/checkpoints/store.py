"""Checkpoints: complete, checksummed, published by a COMMIT file that is written last.

    checkpoints/OWNER.json                     attempt and replica restart of the only one who may write
    checkpoints/step-0000000120/variables.*    every variable, in TensorFlow's checkpoint format
    checkpoints/step-0000000120/state.json     position in the data, loss sums, what was run
    checkpoints/step-0000000120/COMMIT         sizes and SHA-256 of the files above
    checkpoints/last-copy-0000000123           the memory of a pod that is gone (supervise/last_copy.py)
    checkpoints/COMPLETED.json                 the summary of a finished run

`tf.train.Checkpoint(model=...)` omits the state of SeedGenerators, so every variable is written by name.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfgpujob_trainer.checkpoints.completed import replace_file
from tfgpujob_trainer.checkpoints.directory import COMMIT, Owner, committed, last_copies, owner_at, parse_owner, step_of
from tfgpujob_trainer.checkpoints.object_store import ObjectStore
from tfgpujob_trainer.contract.exits import FencedError
from tfgpujob_trainer.model.optimizers import optimizers_of
from tfgpujob_trainer.model.variables import plain_variables
from tfgpujob_trainer.reporting.log import say

_STATE = "state.json"
_PREFIX = "variables"
_PART_BYTES = 256 << 20
_NUMBER_OF_KERAS = re.compile(r"_\d+(?=[/_]|$)")


@dataclass(frozen=True, slots=True)
class Saved:
    """One committed checkpoint."""

    path: Path
    state: Mapping[str, Any]

    def arrays(self) -> dict[str, np.ndarray]:
        """Every variable by name, sorted: TensorFlow lists them in any order."""
        reader = self.reader()
        return {name: reader.get_tensor(name) for name in sorted(reader.get_variable_to_shape_map())}

    def reader(self) -> tf.train.CheckpointReader:
        """TensorFlow's reader of the variables."""
        return tf.train.load_checkpoint(str(self.path / _PREFIX))


class Store:
    """The checkpoint directory of one run. Only the chief saves."""

    def __init__(self, output: Path, owner: Owner, *, keep: int) -> None:
        self.directory = output / "checkpoints"
        self._owner, self._keep = owner, keep

    def take_ownership(self) -> None:
        """Become the only writer; raises FencedError if a newer attempt is it already."""
        self.directory.mkdir(parents=True, exist_ok=True)
        current = self._current_owner()
        if current is not None and self._owner.is_older_than(current):
            raise self._fenced(current)
        replace_file(self.directory / "OWNER.json", json.dumps(self._owner.to_json()))

    def latest(self, newer_than: int = -1) -> Saved | None:
        """The newest complete checkpoint after that step; logs it when a newer one is incomplete."""
        return _first_whole(path for path in self._committed() if step_of(path.name) > newer_than)

    def save(self, step: int, arrays: Mapping[str, np.ndarray], state: Mapping[str, Any], run: str) -> Path:
        """Write and publish a checkpoint, then delete the oldest beyond `keep`.

        Raises FencedError before publishing if another attempt has taken the directory over.
        """
        self._check_owner()
        path = self.directory / f"step-{step:010d}"
        _remove(path)
        try:
            self._write(path, step, arrays, state, run)
        except (OSError, tf.errors.OpError):
            if self._current_owner() == self._owner:
                # On a full disk an incomplete checkpoint would take the space of the next one.
                _remove(path)
            raise
        # Newer ones are damaged, or this run would have continued from them; they don't count.
        for old in [one for one in self._committed() if step_of(one.name) <= step][self._keep :]:
            _remove(old)
        for half in [one for one in self.directory.glob("step-*") if step_of(one.name) < step]:
            if not (half / COMMIT).exists():
                # Its writer was killed: there is only one writer.
                _remove(half)
        self._remove_last_copies(lambda of: of <= step)
        return path

    def _write(
        self, path: Path, step: int, arrays: Mapping[str, np.ndarray], state: Mapping[str, Any], run: str
    ) -> None:
        path.mkdir(parents=True)
        with tf.device("/cpu:0"):
            _write_variables(str(path / _PREFIX), arrays)
        replace_file(path / _STATE, json.dumps(state))
        replace_file(path / "run.json", run)
        files = {p.name: {"bytes": p.stat().st_size, "sha256": _sha256(p)} for p in sorted(path.iterdir())}
        self._check_owner()
        replace_file(path / COMMIT, json.dumps({"step": step, **self._owner.to_json(), "files": files}, indent=1))

    def forget(self, newer_than: int) -> None:
        """Delete the checkpoints after that step."""
        for path in self._committed():
            if step_of(path.name) > newer_than:
                _remove(path)
        self._remove_last_copies(lambda of: of > newer_than)

    def _remove_last_copies(self, of_step: Callable[[int], bool]) -> None:
        for path in last_copies(self.directory):
            if of_step(step_of(path.name)):
                path.unlink(missing_ok=True)

    def _committed(self) -> list[Path]:
        return committed(self.directory)

    def _current_owner(self) -> Owner | None:
        return owner_at(self.directory)

    def _check_owner(self) -> None:
        current = self._current_owner()
        if current is not None and current != self._owner:
            raise self._fenced(current)

    def _fenced(self, owner: Owner) -> FencedError:
        return FencedError(
            f"{self.directory} now belongs to attempt {owner.attempt}, restart {owner.replica_restart}"
            f"{'' if owner.job_uid == self._owner.job_uid else ' of another job'}; this is attempt "
            f"{self._owner.attempt}, restart {self._owner.replica_restart}: nothing was written"
        )


class CopiedStore(Store):
    """A store whose checkpoints are also copied to an object store, so that they outlive the local disk."""

    def __init__(self, output: Path, owner: Owner, *, keep: int, remote: ObjectStore) -> None:
        super().__init__(output, owner, keep=keep)
        self._remote = remote

    def latest(self, newer_than: int = -1) -> Saved | None:
        """The newest complete checkpoint, in either place; one that is only in the object store is fetched."""
        names = {path.name for path in self._committed()} | set(self._remote.checkpoints())
        for name in sorted(names, reverse=True):
            if step_of(name) <= newer_than:
                break
            if _problem(self.directory / name) is not None:
                self._remote.fetch(name, self.directory)
            found = _first_whole([self.directory / name])
            if found is not None:
                return found
        return None

    def save(self, step: int, arrays: Mapping[str, np.ndarray], state: Mapping[str, Any], run: str) -> Path:
        """Save in both places; raises OSError if the object store refuses it."""
        path = super().save(step, arrays, state, run)
        self._remote.publish(path)
        for old in [name for name in self._remote.checkpoints() if step_of(name) <= step][self._keep :]:
            self._remote.remove(old)
        return path

    def forget(self, newer_than: int) -> None:
        """Delete the checkpoints after that step in both places."""
        super().forget(newer_than)
        for name in self._remote.checkpoints():
            if step_of(name) > newer_than:
                self._remote.remove(name)

    def take_ownership(self) -> None:
        """Become the only writer in both places."""
        super().take_ownership()
        self._remote.own(self._owner.to_json())

    def _current_owner(self) -> Owner | None:
        record = self._remote.owner()
        return super()._current_owner() if record is None else parse_owner(record)


def store_at(output: Path, remote: ObjectStore | None, owner: Owner, *, keep: int) -> Store:
    """The store of an output directory, with a copy in an object store if there is one."""
    if remote is None:
        return Store(output, owner, keep=keep)
    return CopiedStore(output, owner, keep=keep, remote=remote)


def newest(path: Path) -> Saved | None:
    """The checkpoint at `path`, or the newest complete one if `path` is the output directory of a run."""
    return _first_whole([path] if (path / COMMIT).exists() else committed(path / "checkpoints"))


def variables_to_save(model: keras.Model, captured: Sequence[Any] = ()) -> dict[str, Any]:
    """Every variable of the model except its metrics' (weights, statistics, SeedGenerators), its optimizers', and
    `captured`.
    """
    metrics = {id(v) for v in model.metrics_variables}
    own = [v for v in model.variables if id(v) not in metrics]
    named, names = _named("model", own) | _named("plain", [*plain_variables(model), *captured]), {id(v) for v in own}
    for where, optimizer in optimizers_of(model).items():
        held = [v for v in optimizer.variables if id(v) not in names]  # one that wraps another has the other's too
        names |= {id(v) for v in held}
        named |= _named(where, held)
    return named


def place(name: str) -> str:
    """The name of a saved variable, the same in any process.

    Keras numbers unnamed layers and optimizers by how many this process has created, and a resumed script creates
    others than a new one. `optimizer/0000/adam_3/iteration` is `optimizer/0000/adam/iteration`; the position, which
    comes first, distinguishes variables.
    """
    return _NUMBER_OF_KERAS.sub("", name)


def _named(prefix: str, variables: Sequence[Any]) -> dict[str, Any]:
    # The position makes the name unique, the path makes it readable.
    return {f"{prefix}/{i:04d}/{v.path}": v for i, v in enumerate(variables)}


def _write_variables(prefix: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Write one part after the other: what is computed when it is looked up need not be in memory together."""
    parts: list[str] = []
    held: dict[str, tf.Tensor] = {}
    size = 0
    for name in sorted(arrays):
        array = arrays[name]
        held[name], size = tf.constant(array), size + array.nbytes
        if size >= _PART_BYTES:
            parts.append(_write_part(f"{prefix}-{len(parts)}", held))
            held, size = {}, 0
    if not parts:
        _write_part(prefix, held)
        return
    if held:
        parts.append(_write_part(f"{prefix}-{len(parts)}", held))
    tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=parts, destination_prefix=prefix, delete_old_dirs=False)


def _write_part(prefix: str, held: Mapping[str, tf.Tensor]) -> str:
    tf.raw_ops.SaveV2(
        prefix=prefix, tensor_names=list(held), shape_and_slices=[""] * len(held), tensors=list(held.values())
    )
    return prefix


def _first_whole(paths: Iterable[Path]) -> Saved | None:
    for path in paths:
        problem = _problem(path)
        if problem is None:
            return Saved(path, json.loads((path / _STATE).read_text()))
        say(f"checkpoint {path.name} is corrupt ({problem}): falling back to the one before it")
    return None


def _problem(path: Path) -> str | None:
    try:
        manifest = json.loads((path / COMMIT).read_text())
        for name, expected in manifest["files"].items():
            file = path / name
            if not file.is_file():
                return f"{name} is missing"
            if file.stat().st_size != expected["bytes"] or _sha256(file) != expected["sha256"]:
                return f"{name} does not match its checksum"
    except (OSError, ValueError, KeyError, TypeError):
        return f"{COMMIT} cannot be read"
    return None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _remove(path: Path) -> None:
    (path / COMMIT).unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)
