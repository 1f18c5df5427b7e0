"""Saves and restores the whole state of a run. The chief reads and broadcasts, so all workers are bit-identical."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfgpujob_trainer.checkpoints.in_memory import InMemory, InMemoryCheckpoints
from tfgpujob_trainer.checkpoints.state import OF_STATE, apart, together
from tfgpujob_trainer.checkpoints.store import Saved, Store, place
from tfgpujob_trainer.cluster.peers import Peers
from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.model.variables import local_value, reader
from tfgpujob_trainer.reporting.log import say

_NEW_OUTPUT = "give the job an output of its own (output.subPath in its claim), or restore the old value"


class CheckpointManager:
    """Saves the variables of a run in a Store and restores them, like tf.train.CheckpointManager.

    `identity` has what must not change between two starts, by the names for an error message; `config` what may, with a
    log line. `start` prepares a run without a checkpoint. `published` is called for each checkpoint with its directory,
    its step, and the seconds since the end of the step.
    """

    def __init__(
        self,
        store: Store,
        variables: Mapping[str, Any],
        *,
        identity: Mapping[str, Any],
        config: Mapping[str, Any],
        run_json: str,
        published: Callable[[Path, int, float], None] = lambda *_: None,
        start: Callable[[Peers], None] = lambda _: None,
        in_memory: InMemoryCheckpoints | None = None,
    ) -> None:
        self._store, self._variables = store, variables
        self._names = {place(name): name for name in variables}
        self._published, self._start, self._in_memory = published, start, in_memory
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="save")
        self._writing: Future[None] | None = None
        self._identity, self._config, self._run_json = identity, config, run_json
        self._read = reader(variables.values())
        self._rates = {n: float(local_value(v)) for n, v in variables.items() if n.endswith("/learning_rate")}

    def save(self, peers: Peers, step: int, state: Callable[[], Mapping[str, Any]]) -> None:
        """Copy everything, and let the chief write it while training continues; waits for the previous save first.

        Only the chief asks for the state, which has JSON values and arrays.
        A checkpoint that is not published when the process is killed does not exist; the previous one does.
        """
        self.wait()
        if not peers.is_chief:
            return
        began = time.monotonic()
        # A real copy: NumPy may show the variable's memory, which the next step changes.
        arrays = {name: np.array(value) for name, value in zip(self._variables, self._read(), strict=True)}
        record, of_state = apart(self._record(state()))
        arrays |= {name: np.array(value) for name, value in of_state.items()}
        self._writing = self._writer.submit(self._write, began, step, arrays, record)

    @property
    def writing(self) -> bool:
        """True while the last save is being written here, so that another would have to wait."""
        return self._writing is not None and not self._writing.done()

    @property
    def in_memory(self) -> bool:
        """True if `save_in_memory` can be called."""
        return self._in_memory is not None and self._in_memory.on

    def in_memory_may_follow_step(self) -> bool:
        """True if `save_in_memory` after the step that begins now costs this process little enough.

        Call it before each step.
        """
        return self._in_memory is None or self._in_memory.may_follow_step()

    def in_memory_cost(self, seconds: float) -> None:
        """The next `save_in_memory` has already cost this time, for which training paused."""
        if self._in_memory is not None:
            self._in_memory.cost(seconds)

    def save_in_memory(self, step: int, state: Callable[[], Mapping[str, Any]]) -> None:
        """Copy everything into the memory of this pod, where it outlives the process."""
        assert self._in_memory is not None
        self._in_memory.save(step, lambda: self._record(state()))

    def forget(self, peers: Peers, *, newer_than: int) -> None:
        """Delete the chief's checkpoints after that step."""
        if peers.is_chief:
            self._store.forget(newer_than)

    def wait(self, seconds: float | None = None) -> None:
        """Return when nothing is being written; raises the error of the last save, if it was not published.

        Raises TimeoutError if that takes longer than `seconds`.
        """
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.result(seconds)

    def _write(self, began: float, step: int, arrays: Mapping[str, np.ndarray], record: Mapping[str, Any]) -> None:
        path = self._store.save(step, arrays, record, self._run_json)
        self._published(path, step, time.monotonic() - began)

    def restore(self, peers: Peers) -> dict[str, Any] | None:
        """Restore the chief's newest checkpoint everywhere; its state, or None if there is none.

        From memory or storage. Only the chief reads, so all workers agree even if the directory is not shared. Raises
        ConfigError if the checkpoint does not fit the model, the data or the batch size.
        """
        saved = self._newest() if peers.is_chief else None
        arrays = {} if saved is None else saved.arrays()
        header = json.loads(peers.broadcast_from_chief(_header(saved, arrays)))
        if header is None:
            self._start(peers)
            return None
        state = header["state"]
        self._check(state, header["arrays"])
        of_state: dict[str, np.ndarray] = {}
        names = list(header["arrays"])
        types = [(np.dtype(tf.as_dtype(name).as_numpy_dtype), shape) for name, shape in header["arrays"].values()]
        sizes = [dtype.itemsize * math.prod(shape) for dtype, shape in types]
        parts = peers.broadcast_parts_from_chief(sizes, lambda index: arrays[names[index]].tobytes())
        for name, (dtype, shape), data in zip(names, types, parts, strict=True):
            value = np.frombuffer(data, dtype).reshape(shape)
            if name.startswith(OF_STATE):
                of_state[name] = value
            elif not self._keeps_new_rate(name, state):
                self._variables[self._names[place(name)]].assign(value)
        return dict(together(state, of_state))

    def _newest(self) -> Saved | InMemory | None:
        kept = None if self._in_memory is None else self._in_memory.latest()
        saved = self._store.latest(newer_than=-1 if kept is None else kept.step)
        if saved is None and kept is not None:
            say(f"the state after step {kept.step} was kept in memory")
        return saved or kept

    def _record(self, state: Mapping[str, Any]) -> dict[str, Any]:
        return {**state, "identity": self._identity, "config": self._config, "learningRates": self._rates}

    def _check(self, state: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
        for name, value in self._identity.items():
            if state["identity"].get(name) != value:
                raise ConfigError(
                    f"the checkpoint was made with {name} {state['identity'].get(name)}, this run has {value}",
                    _NEW_OUTPUT,
                )
        saved = {place(name): name for name in arrays if not name.startswith(OF_STATE)}
        expected = {key: list(self._variables[name].shape) for key, name in self._names.items()}
        found = {key: arrays[name][1] for key, name in saved.items()}
        for key in {**expected, **found}:
            if expected.get(key) != found.get(key):
                problem = f"has shape {found.get(key)} in the checkpoint and {expected.get(key)} in the model"
                if key not in found or key not in expected:
                    problem = f"is not in the {'model' if key in found else 'checkpoint'}"
                raise ConfigError(f"variable {self._names.get(key) or saved[key]} {problem}", _NEW_OUTPUT)
        for name, value in self._config.items():
            if state["config"].get(name) != value:
                say(f"changed since the checkpoint: {name} was {state['config'].get(name)}, is {value}")

    def _keeps_new_rate(self, name: str, state: Mapping[str, Any]) -> bool:
        """True for a learning rate that the code or the params have changed: it takes precedence over the saved one."""
        rate = self._rates.get(self._names[place(name)])
        if rate is None or state["learningRates"].get(name) == rate:
            return False
        say(f"{name} was {state['learningRates'].get(name)}, continues with {rate}")
        return True


def _header(saved: Saved | InMemory | None, arrays: Mapping[str, np.ndarray]) -> bytes:
    if saved is None:
        return b"null"
    kinds = {name: (tf.as_dtype(a.dtype).name, list(a.shape)) for name, a in arrays.items()}
    return json.dumps({"state": saved.state, "arrays": kinds}).encode()
