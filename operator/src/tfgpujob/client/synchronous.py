"""The client, for scripts and notebooks.

Generated from asynchronous.py by `make crds`: change that, not this.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from tfgpujob import names
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

        `others` are objects that it needs, created before it. A ConfigMap is owned by the job and deleted with it; an
        existing one is refused, unless it is immutable and has the same data. Other existing objects are left
        unchanged. If one of them can't be created, the job isn't created either.
        """
        return self._run(self._client.submit(job, others, replace=replace))

    def ask(self, path: str, *, query: Mapping[str, str] | None = None, body: Object | None = None) -> Object:
        """What the server answers to a GET of any path, or to a POST if there is a body."""
        return self._run(self._client.ask(path, query=query, body=body))

    def absent_claims(self, job: Job) -> Sequence[str]:
        """The PersistentVolumeClaims that the job needs and that don't exist. Claims that the caller may not read count
        as existing.
        """
        return self._run(self._client.absent_claims(job))

    def get(self, name: str, namespace: str | None = None) -> Job:
        """The job as it is now."""
        return self._run(self._client.get(name, namespace))

    def list(
        self, namespace: str | None = None, *, all_namespaces: bool = False, cached: bool = False
    ) -> Sequence[Job]:
        """The jobs of a namespace, or of the whole cluster.

        `cached`: as the API server has them in its cache, which costs it less and may be a moment behind.
        """
        return self._run(self._client.list(namespace, all_namespaces=all_namespaces, cached=cached))

    def deleted(
        self,
        name: str = "",
        namespace: str | None = None,
        *,
        all_namespaces: bool = False,
        page: str = names.PAGE_SERVICE,
    ) -> Sequence[Job]:
        """Jobs that were deleted, as the operator last saw them, the newest first; without a name, all.

        `page`: the Service of the operator's page, as namespace/name. It answers with what the caller may get, so the
        login must be a token.
        """
        return self._run(self._client.deleted(name, namespace, all_namespaces=all_namespaces, page=page))

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
        """Continue from the last checkpoint."""
        return self._run(self._client.resume(name, namespace))

    def scale(self, name: str, workers: int, namespace: str | None = None) -> Job:
        """Set the number of workers; an elastic job is resized while it runs. Raises InvalidJobError before anything is
        sent if the job can't have that many.
        """
        return self._run(self._client.scale(name, workers, namespace))

    def restart(self, name: str, namespace: str | None = None, *, timeout_seconds: float | None = None) -> Job:
        """Stop all pods and start them again, from the last checkpoint; budgets and history stay.

        A finished job never runs again, so it is deleted and created again with the same spec and the same ConfigMaps.
        A spec that would be refused today raises InvalidJobError or ApiError before anything is deleted. Raises
        TimeoutError when the pods of a running job are not gone in time; the job then stays suspended.
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
        """The events about the job and the warnings about its pods, as the cluster still has them: by default of the
        last hour."""
        return self._run(self._client.events(name, namespace))

    def nodes(self) -> Sequence[Object] | None:
        """The nodes of the cluster; None if the caller may not list them."""
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
        """The log lines of all replicas, of those of one role, or of the one with that index.

        `follow` yields lines as they are written, through restarts, until the job has finished. `tail`: start with this
        many lines of each pod.
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
        """As `logs`, in batches of the lines that are available, for logs of gigabytes."""
        return self._iterate(
            self._client.log_batches(name, namespace, follow=follow, tail=tail, role=role, index=index)
        )

    def usage(self, name: str, namespace: str | None = None) -> Usage:
        """What each replica uses, and how fast it is."""
        return self._run(self._client.usage(name, namespace))

    def series(self, name: str, namespace: str | None = None) -> Series:
        """The curves of the training by name: loss, metrics, seconds of a step. Empty if they are not known.

        A running trainer is asked for them. After its end they are read from the log, if the pod still exists.
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
        """Run a pod that computes on GPUs of one node and yield its state until it reports its result; then delete it.

        `image`: the trainer's. `node`: by its hostname; None: the scheduler chooses. Raises PodError.
        """
        return self._iterate(
            self._client.check_gpus(image=image, gpus=gpus, node=node, timeout_seconds=timeout_seconds)
        )
