"""`tfgpu top`: running jobs, or the replicas of one, updated periodically."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Final

import click

from tfgpujob.cli.cluster import cluster_verb, job_argument, refuse_elsewhere
from tfgpujob.cli.output import Format, size, table
from tfgpujob.cli.rows import show
from tfgpujob.cli.verbs import Heading
from tfgpujob.client import ApiError, Client, Job, ReplicaUsage, Usage
from tfgpujob.core.observed.progress_report import Report
from tfgpujob.exits import CliError
from tfgpujob.kube.errors import is_transient
from tfgpujob.printable import printable

PLACE: Final = Heading.IN_A_CLUSTER, 60

_A_SECOND: Final = 0.9995
"""Below this, a duration is shown in milliseconds with three digits."""
_REPLICA = ("REPLICA", "STATE", "NODE", "CPU", "MEMORY")
_HEADERS = (*_REPLICA, "STEP", "STEP TIME", "OWN", "INPUT WAIT", "GPU MEMORY", "GPU USE")


@click.command()
@job_argument(required=False)
@click.option("-A", "--all-namespaces", is_flag=True, help="The jobs of all namespaces.")
@click.option("--every", type=click.FloatRange(min=1), default=5, show_default=True, help="Seconds between two looks.")
@cluster_verb
def command(client: Client, name: str | None, *, all_namespaces: bool, every: float) -> None:
    """Show the jobs that have not finished, or the replicas of one, until ^C; only once if the output is no terminal.

    For each replica: CPU and memory (from the metrics API), the step, the time of a step and its part without waiting
    for the others (from the trainer), the most GPU memory that TensorFlow has used, and the current utilization of each
    GPU (by NVML).
    """
    if name is not None and all_namespaces:
        raise CliError("one job and --all-namespaces are given together", "keep one of them")
    if name is not None:
        refuse_elsewhere(client, name)
    seen = False
    while True:
        try:
            shown = client.usage(name) if name is not None else client.list(all_namespaces=all_namespaces)
        except ApiError as error:
            if not (seen and is_transient(error)):
                raise
            # The last output stays.
            click.echo(f"not known now: {printable(' '.join(error.message.split()))}", err=True)
        else:
            _show(shown, namespaces=all_namespaces)
            seen = True
        if not sys.stdout.isatty():
            return
        time.sleep(every)


def _show(shown: Usage | Sequence[Job], *, namespaces: bool) -> None:
    if sys.stdout.isatty():
        click.clear()
    if isinstance(shown, Usage):
        _show_replicas(shown)
        return
    running = [job for job in shown if not job.finished]
    show(running, Format.WIDE, namespaces=namespaces)
    if not running:
        click.echo("no job is running; tfgpu list shows those that have finished", err=True)


def _show_replicas(usage: Usage) -> None:
    click.echo(table(_HEADERS, [_row(replica) for replica in usage.replicas]))
    for line in usage.unknown:
        click.echo(f"not known: {printable(line)}")


def _row(replica: ReplicaUsage) -> list[str]:
    pod, told = replica.pod, replica.report or Report(phase="unknown")
    who = f"{pod.role}-{pod.index}"
    step = "-" if told.step is None else str(told.step)
    return [
        who,
        "stopping" if pod.deleting else "ready" if pod.ready else pod.waiting_reason or pod.phase,
        pod.node or "-",
        "-" if replica.cpus is None else f"{replica.cpus:.2f}",
        "-" if replica.memory_bytes is None else size(replica.memory_bytes),
        f"{step}/{told.steps}" if told.steps else step,
        _seconds(told.step_seconds),
        _seconds((told.worker_seconds or {}).get(who)),
        "-" if told.input_wait is None else f"{told.input_wait:.0%}",
        ", ".join(size(mib << 20) for mib in told.gpu_memory_mib or ()) or "-",
        ", ".join(f"{percent}%" for percent in told.gpu_use_percent or ()) or "-",
    ]


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{1000 * seconds:.3g} ms" if seconds < _A_SECOND else f"{seconds:.1f} s"
