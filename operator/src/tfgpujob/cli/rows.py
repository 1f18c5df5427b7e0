"""Jobs as rows of a table."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import click

from tfgpujob.cli.output import Format, coloured, data, table
from tfgpujob.client import Job
from tfgpujob.names import Phase
from tfgpujob.units import duration, hours

_COLOURS = {
    Phase.RUNNING: "green",
    Phase.SUCCEEDED: "green",
    Phase.FAILED: "red",
    Phase.RESTARTING: "yellow",
    Phase.PENDING: "yellow",
}
_HEADERS = ("NAME", "PHASE", "READY", "PROGRESS", "ETA", "GPUS", "AGE")
_WIDE = ("STRATEGY", "ATTEMPT", "RESTARTS", "STEP", "LOSS", "EXAMPLES/S", "CHECKPOINT", "GPU-HOURS")


def show(jobs: Sequence[Job], form: Format, *, namespaces: bool = False) -> None:
    """Print the jobs. JSON and YAML have the objects themselves, in a List like kubectl's."""
    if form in {Format.JSON, Format.YAML}:
        click.echo(data({"apiVersion": "v1", "kind": "List", "items": [job.raw for job in jobs]}, form))
        return
    wide = form is Format.WIDE
    headers = [*(("NAMESPACE",) if namespaces else ()), *_HEADERS, *(_WIDE if wide else ())]
    click.echo(table(headers, [row(job, namespace=namespaces, wide=wide) for job in jobs]))


def row(job: Job, *, namespace: bool = False, wide: bool = False) -> list[str]:
    """The cells of one job; `-` for unknown values."""
    status = job.status
    progress = status.progress
    phase = _phase(job)
    if progress is None:
        done = eta = "-"
    else:
        epoch = "-" if progress.epoch is None else f"epoch {progress.epoch}"
        done = f"{progress.percent} %" if progress.percent is not None else epoch
        running = status.phase is Phase.RUNNING and progress.remaining_seconds is not None
        eta = duration(progress.remaining_seconds or 0) if running else "-"
    cells = [
        *((job.namespace,) if namespace else ()),
        job.name,
        coloured(phase, _COLOURS[status.phase]) if status.phase in _COLOURS else phase,
        status.ready or "-",
        done,
        eta,
        _or_dash(job.gpus),
        _age(job),
    ]
    if wide:
        checkpoint = status.last_checkpoint
        cells += [
            str(job.raw["spec"].get("strategy", "-")),
            _or_dash(status.attempt),
            _or_dash(status.restarts or 0),
            _or_dash(progress.step if progress else None),
            _or_dash(progress.loss if progress else None),
            _or_dash(progress.examples_per_second if progress else None),
            f"step {checkpoint.step}" if checkpoint and checkpoint.step is not None else "-",
            hours(job.gpu_seconds(datetime.now(UTC))),
        ]
    return cells


def _phase(job: Job) -> str:
    """With the reason for a job that is not accepted, which would otherwise seem only to wait."""
    phase = str(job.status.phase or "-")
    return f"{phase} ({job.refusal.reason})" if job.refusal and not job.finished else phase


def _or_dash(value: Any) -> str:
    return "-" if value is None else str(value)


def _age(job: Job) -> str:
    created = datetime.fromisoformat(job.raw["metadata"]["creationTimestamp"])
    return duration((datetime.now(UTC) - created).total_seconds())
