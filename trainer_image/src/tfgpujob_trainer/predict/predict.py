"""Mode predict: a model on each device computes parts of the input, without any collective."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfgpujob_contract import phases
from tfgpujob_contract.exit_codes import ExitCode
from tfgpujob_contract.trainer_config import TrainerConfig
from tfgpujob_trainer.checkpoints.object_store import object_store
from tfgpujob_trainer.cluster.devices import check_placement, prepare
from tfgpujob_trainer.cluster.stop import StopFlag
from tfgpujob_trainer.contract import entrypoint
from tfgpujob_trainer.contract.config import batch_size
from tfgpujob_trainer.contract.entrypoint import Entrypoint
from tfgpujob_trainer.contract.environment import Environment
from tfgpujob_trainer.contract.exits import Outcome, StoppedError
from tfgpujob_trainer.contract.text import counted
from tfgpujob_trainer.data.sources import Source
from tfgpujob_trainer.data.sources.base import Indexed, Rows
from tfgpujob_trainer.data.sources.cached import MEMORY, read_once
from tfgpujob_trainer.data.sources.stream import Stream
from tfgpujob_trainer.data.splits import ModuleRows
from tfgpujob_trainer.predict.models import Model, load
from tfgpujob_trainer.predict.parts import LocalFolder, Part, Results, split
from tfgpujob_trainer.predict.shares import Share, share_of
from tfgpujob_trainer.reporting.heartbeat import Heartbeat
from tfgpujob_trainer.reporting.log import say
from tfgpujob_trainer.reporting.progress_endpoint import serve
from tfgpujob_trainer.reporting.run_json import code_hash, describe_run
from tfgpujob_trainer.reporting.timing import Durations

_PREFETCH = 2
"""Batches of a part that are read while another one is computed."""


def predict(settings: TrainerConfig, env: Environment, heartbeat: Heartbeat) -> Outcome:
    """Compute this worker's missing parts; returns how it ended."""
    _share_cores(max(env.gpus or 1, 1) * env.processes_per_gpu)
    devices = prepare(settings, env)
    check_placement(settings.placement or {}, devices)
    devices = devices[:1] if env.traits.single_replica and not settings.placement else devices
    module = entrypoint.load(settings.entrypoint, settings.params, env.code_directory)
    if env.progress_port:
        port, token = env.progress_port, env.progress_token
        serve(heartbeat.run_status, port, in_pod=env.in_pod, token=token)
    stop = StopFlag()
    stop.listen()
    heartbeat.stoppable()
    rows = ModuleRows(settings, module, heartbeat).read("predict", module.data("predict"))
    data = _indexed(settings, rows, heartbeat)
    models = load(settings, module, devices, data.take(np.arange(1))[0])
    store = object_store(settings.output.store)
    results = Results(
        LocalFolder(Path(settings.output.directory) / "predictions") if store is None else store.folder("predictions")
    )
    results.claim(_identity(settings, module, data, models[0].digest))
    parts = split(data.rows, settings.predict.part_rows)
    share = share_of(results, parts, index=env.index, replicas=env.replicas, shared=env.shared_parts)
    say(
        f"{counted(data.rows, 'row')} in {counted(len(parts), 'part')}, {share.describe()}; "
        f"{'one model over' if settings.placement else 'a model on each of'} {', '.join(devices)}"
    )
    for note in data.notes:
        say(note)
    work = _Work(settings, data, share, parts=len(parts), heartbeat=heartbeat, stop=stop)
    work.run(models)
    if stop.set and share.open:
        raise StoppedError(f"stopped by SIGTERM, {counted(share.written, 'part is', 'parts are')} written")
    missing = share.missing()
    if not missing:
        share.finish()
    summary = {
        **work.figures.summary(),
        "parts": share.size,
        "partsWrittenBefore": share.before,
        "predictions": results.name,
        "complete": not missing,
    }
    if share.written:
        described = describe_run(settings, env, module.file, devices=devices, replicas=len(devices))
        results.report(env.index, {**described, "workers": env.replicas, "summary": summary})
    to_come = counted(len(missing), "part of other workers is", "parts of other workers are")
    say(f"{work.figures.line()}; {f'{to_come} to come' if missing else 'all is there'}")
    return Outcome(
        code=ExitCode.DONE, cause="Completed", message=f"done: {counted(share.size, 'part')}", summary=summary
    )


@dataclass
class _Figures:
    """Rows and seconds of each call of a model, from all threads."""

    started: float = field(default_factory=time.monotonic)
    rows: int = 0
    latencies: Durations = field(default_factory=Durations)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, rows: int, seconds: float) -> None:
        """Add one call."""
        with self.lock:
            self.rows += rows
            self.latencies.add(seconds)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def summary(self) -> dict[str, Any]:
        with self.lock:
            seconds, quantiles = self.seconds, [self.latencies.quantile(share) for share in (0.5, 0.99)]
        p50, p99 = (float(f"{quantile * 1000:.3g}") for quantile in quantiles)
        return {"rows": self.rows, "examplesPerSecond": round(self.rows / seconds, 1), "latencyMs": [p50, p99]}

    def line(self) -> str:
        found = self.summary()
        p50, p99 = found["latencyMs"]
        return (
            f"{found['rows']} rows, {found['examplesPerSecond']:.0f} rows/s, latency of a batch {p50:g} ms (p50), "
            f"{p99:g} ms (p99)"
        )


class _Work:
    """The parts to be computed, dispatched to one thread for each device."""

    def __init__(
        self,
        settings: TrainerConfig,
        data: Indexed,
        share: Share,
        *,
        parts: int,
        heartbeat: Heartbeat,
        stop: StopFlag,
    ) -> None:
        self._settings, self._data, self._share, self._parts = settings, data, share, parts
        self._heartbeat, self._stop = heartbeat, stop
        self.figures = _Figures()
        self._known = self._there()
        self._there_before = self._known[1]

    def run(self, models: Sequence[Model]) -> None:
        """Compute until all is done or a stop is requested. Raises the exception of the first thread that fails."""
        self._readers = ThreadPoolExecutor(self._settings.data.parallel_reads, "read")
        threads = ThreadPoolExecutor(len(models), "device")
        running = [threads.submit(self._compute_parts, model) for model in models]
        while True:
            print(json.dumps({"tfgpu": "progress", **self._show()}), flush=True)
            ended, waiting = wait(running, self._settings.log_every_seconds, FIRST_EXCEPTION)
            for one in ended:
                one.result()
            if not waiting:
                self._show()
                return

    def _show(self) -> dict[str, Any]:
        """The progress of the job by its written parts; the latency is this worker's."""
        with contextlib.suppress(OSError):  # an unreadable folder must not end the job
            self._known = self._there()
        parts, rows = self._known
        found = {
            **self.figures.summary(),
            "phase": phases.PREDICTING,
            "step": parts,
            "steps": self._parts,
            "rows": rows,
            "examplesPerSecond": round((rows - self._there_before) / self.figures.seconds, 1),
        }
        self._heartbeat.run_status.update(**found)
        return found

    def _there(self) -> tuple[int, int]:
        """Number of written parts, and their rows."""
        missing = self._share.missing()
        return self._parts - len(missing), self._data.rows - sum(part.stop - part.start for part in missing)

    def _compute_parts(self, model: Model) -> None:
        while not self._stop.set and (part := self._share.take()) is not None:
            outputs = self._compute(model, part)
            if outputs is not None:
                names = outputs[0]
                self._share.write(part, {name: np.concatenate([o[name] for o in outputs]) for name in names})

    def _compute(self, model: Model, part: Part) -> list[dict[str, np.ndarray]] | None:
        """The model's outputs for its batches; None if it is left to others, or written by now."""
        outputs: list[dict[str, np.ndarray]] = []
        since, done = time.monotonic(), 0
        for x, count in self._prefetched(part.batches(batch_size(self._settings))):
            if not self._share.is_needed(part) or self._leaves(part, done, time.monotonic() - since):
                return None
            began = time.monotonic()
            outputs.append(model(x, count))
            self.figures.add(count, time.monotonic() - began)
            done += count
            self._heartbeat.beat(phases.PREDICTING)
        return outputs

    def _leaves(self, part: Part, done: int, seconds: float) -> bool:
        """True if a stop is requested, and at its pace this part would take too long for it."""
        if not self._stop.set:
            return False
        left = part.stop - part.start - done
        return not done or left * seconds / done > self._share.leave_seconds

    def _prefetched(self, batches: Sequence[np.ndarray]) -> Iterator[tuple[Any, int]]:
        """x of each batch and its number of rows; the next ones are read meanwhile."""
        reads: deque[Any] = deque()
        later = iter(batches)
        for batch in batches:
            for more in itertools.islice(later, _PREFETCH + 1 - len(reads)):
                reads.append(self._readers.submit(self._data.take, more))
            rows: Rows = reads.popleft().result()
            yield rows[0], len(batch)


def _indexed(settings: TrainerConfig, data: Source, heartbeat: Heartbeat) -> Indexed:
    """`data`, first read to its end if its rows have no number."""
    if isinstance(data, Indexed):
        return data
    assert isinstance(data, Stream)
    cache = MEMORY if settings.data.cache == "none" else settings.data.cache
    return read_once(data, cache, lambda: heartbeat.beat(phases.CACHING))


def _identity(settings: TrainerConfig, module: Entrypoint, data: Indexed, model: str) -> dict[str, Any]:
    return {
        "rows": data.rows,
        "partRows": settings.predict.part_rows,
        "globalBatchSize": settings.global_batch_size,
        "precision": settings.precision,
        "params": dict(settings.params),
        "code": code_hash(module.file),
        "data": data.fingerprint(),
        "model": model,
    }


def _share_cores(devices: int) -> None:
    """On CPUs, give each device its share of the cores, unless the environment sets the number of threads."""
    cores = len(os.sched_getaffinity(0))
    with contextlib.suppress(RuntimeError):  # TensorFlow is up already: it stays as it is
        if "TF_NUM_INTRAOP_THREADS" not in os.environ:
            tf.config.threading.set_intra_op_parallelism_threads(max(1, cores // devices))
        if "TF_NUM_INTEROP_THREADS" not in os.environ:
            tf.config.threading.set_inter_op_parallelism_threads(max(2, cores, devices))
