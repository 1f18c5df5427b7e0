"""The client, for scripts and notebooks.

Generated from asynchronous.py by `make crds`: change that, not this.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from tfgpujob.api.status import ProgressStatus
from tfgpujob.client.blocking import BlockingClient
from tfgpujob.client.gpu_check import GpuCheck
from tfgpujob.client.job import Job
from tfgpujob.client.logs import LogLine
from tfgpujob.client.tensorboard import TensorBoard
from tfgpujob.client.usage import Usage
from tfgpujob.client.viewer import PORT
from tfgpujob.core.observed.progress_series import Series
from tfgpujob.core.observed.snapshot import Object
from tfgpujob.names import Condition


class Client(BlockingClient):
    """`AsyncClient` without the `await`. A context manager; works in notebooks too."""

    def submit(self, job: Mapping[str, Any], others: Sequence[Object] = (), *, replace: bool = False) -> Job:
        """Create a TFGPUJob as YAML gives it. Raises InvalidJobError before anything is sent.

        `replace` deletes a job of that name first, with its pods, whatever its state. If the new job would be refused,
        ApiError is raised before that.

        `others` are objects that it needs, made before it. A ConfigMap belongs to the job from then on and goes with
        it; one that is there already is refused, unless it is immutable and holds the same. What else is there already
        stays as it is. If one of them can't be made, there is no job.
        """
        return self._run(self._client.submit(job, others, replace=replace))

    def ask(self, path: str, *, query: Mapping[str, str] | None = None, body: Object | None = None) -> Object:
        """What the server answers to a GET of any path, or to a POST if there is a body."""
        return self._run(self._client.ask(path, query=query, body=body))

    def absent_claims(self, job: Job) -> Sequence[str]:
        """Which PersistentVolumeClaims that the job needs are not there; of those that may not be read, none."""
        return self._run(self._client.absent_claims(job))

    def get(self, name: str, namespace: str | None = None) -> Job:
        """The job as it is now."""
        return self._run(self._client.get(name, namespace))

    def list(self, namespace: str | None = None, *, all_namespaces: bool = False) -> Sequence[Job]:
        """The jobs of a namespace, or of the whole cluster."""
        return self._run(self._client.list(namespace, all_namespaces=all_namespaces))

    def watch(self, name: str, namespace: str | None = None) -> Generator[Job, None, None]:
        """The job as it is now, and again after every change, until it is deleted. Raises ApiError(404)."""
        return self._iterate(self._client.watch(name, namespace))

    def wait(
        self,
        name: str,
        namespace: str | None = None,
        *,
        condition: str = Condition.FINISHED,
        timeout_seconds: float | None = None,
    ) -> Job:
        """Until the condition is True, or the job has finished without it ever becoming so.

        Raises TimeoutError, and ApiError(404) when the job is deleted meanwhile.
        """
        return self._run(self._client.wait(name, namespace, condition=condition, timeout_seconds=timeout_seconds))

    def suspend(self, name: str, namespace: str | None = None) -> Job:
        """Stop its pods and keep the job."""
        return self._run(self._client.suspend(name, namespace))

    def resume(self, name: str, namespace: str | None = None) -> Job:
        """Go on from the last checkpoint."""
        return self._run(self._client.resume(name, namespace))

    def scale(self, name: str, workers: int, namespace: str | None = None) -> Job:
        """Go on with so many workers; of an elastic job also while it runs. Raises InvalidJobError if it can't have so
        many, before anything is sent.
        """
        return self._run(self._client.scale(name, workers, namespace))

    def restart(self, name: str, namespace: str | None = None, *, timeout_seconds: float | None = None) -> Job:
        """Stop all pods and start them again, from the last checkpoint; budgets and history stay.

        A finished job never runs again, so it is deleted and created anew with the same spec, and its ConfigMaps pass
        to the new one. A spec that would be refused today raises InvalidJobError or ApiError before anything is
        deleted. Raises TimeoutError when the pods of a job that runs are not gone in time; it is then left suspended.
        """
        return self._run(self._client.restart(name, namespace, timeout_seconds=timeout_seconds))

    def delete(self, name: str, namespace: str | None = None, *, propagation: str = "Background") -> None:
        """Delete the job with its pods. `propagation`: Background, Foreground, or Orphan, which keeps the pods."""
        self._run(self._client.delete(name, namespace, propagation=propagation))

    def progress(self, name: str, namespace: str | None = None) -> ProgressStatus | None:
        """status.progress: how far the training is; None until the first progress report."""
        return self._run(self._client.progress(name, namespace))

    def pods(self, name: str, namespace: str | None = None) -> Sequence[Object]:
        """The job's pods as Kubernetes gives them, in the order of their names."""
        return self._run(self._client.pods(name, namespace))

    def events(self, name: str, namespace: str | None = None) -> Sequence[Object]:
        """The events about the job itself, as the cluster still has them: by default of the last hour."""
        return self._run(self._client.events(name, namespace))

    def nodes(self) -> Sequence[Object] | None:
        """The nodes of the cluster; None where one may not see them."""
        return self._run(self._client.nodes())

    def logs(
        self,
        name: str,
        namespace: str | None = None,
        *,
        follow: bool = False,
        tail: int | None = None,
        role: str | None = None,
        index: int | None = None,
    ) -> Generator[LogLine, None, None]:
        """What all replicas print, or those of one role, or the one of that index.

        `follow` goes on as they print and through restarts, until the job has finished. `tail`: begin with so many
        lines of each pod.
        """
        batches = self.log_batches(name, namespace, follow=follow, tail=tail, role=role, index=index)
        with contextlib.closing(batches):
            for batch in batches:
                yield from batch

    def log_batches(
        self,
        name: str,
        namespace: str | None = None,
        *,
        follow: bool = False,
        tail: int | None = None,
        role: str | None = None,
        index: int | None = None,
    ) -> Generator[Sequence[LogLine], None, None]:
        """As `logs`, as many lines at a time as there are: for who reads logs of gigabytes."""
        return self._iterate(
            self._client.log_batches(name, namespace, follow=follow, tail=tail, role=role, index=index)
        )

    def usage(self, name: str, namespace: str | None = None) -> Usage:
        """What each replica uses, and how fast it is."""
        return self._run(self._client.usage(name, namespace))

    def series(self, name: str, namespace: str | None = None) -> Series:
        """The curves of the training: loss, metrics, seconds of a step, by name; empty where nobody knows them.

        A trainer that runs tells them; of one that has ended they are read from its log, as far as its pod is kept.
        """
        return self._run(self._client.series(name, namespace))

    def tensorboard(
        self,
        name: str,
        namespace: str | None = None,
        *,
        port: int = PORT,
        logdir: str | None = None,
        image: str | None = None,
    ) -> Generator[TensorBoard, None, None]:
        """TensorBoard on the job's events, at this machine's port (0: any free one), for as long as it is iterated.

        `logdir`: where the events are as the job's pods see it, if the bundled trainer did not write them. `image`: one
        with TensorBoard, if the job's own has none. Raises TensorBoardError.
        """
        return self._iterate(self._client.tensorboard(name, namespace, port=port, logdir=logdir, image=image))

    def files(
        self, name: str, path: str, namespace: str | None = None, *, image: str | None = None
    ) -> Generator[TensorBoard, None, None]:
        """A pod that hands out one file or folder of the job, at /tar of its address, for as long as it is iterated.

        `path`: as the job's pods see it, or relative to the folder that a script runs in, or to the output directory.
        `image`: one with Python, if the job's own has none. Raises TensorBoardError.
        """
        return self._iterate(self._client.files(name, path, namespace, image=image))

    def check_gpus(
        self, *, image: str, gpus: int = 1, node: str | None = None, timeout_seconds: float = 120
    ) -> Generator[GpuCheck, None, None]:
        """Run a pod that computes on GPUs of one node, until it says what it has found; it is deleted then.

        `image`: the trainer's. `node`: by its hostname; None: where the scheduler finds them. Raises PodError.
        """
        return self._iterate(
            self._client.check_gpus(image=image, gpus=gpus, node=node, timeout_seconds=timeout_seconds)
        )
