"""`tfgpu list`: all jobs of a cluster, or all runs of this machine."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click

from tfgpujob.cli.cluster import cluster_options, connected
from tfgpujob.cli.options import output_option
from tfgpujob.cli.output import Format, data, table
from tfgpujob.cli.rows import show
from tfgpujob.cli.verbs import Heading
from tfgpujob.core.observed.snapshot import Object
from tfgpujob.describe.facts import unseen_seconds
from tfgpujob.exits import CliError
from tfgpujob.local.folder import RUNS, Folder, runs, shown

PLACE: Final = Heading.IN_A_CLUSTER, 20

_ENDED: Final = frozenset({"Succeeded", "Failed"})


@click.command()
@click.option("-A", "--all-namespaces", is_flag=True, help="The jobs of all namespaces.")
@click.option("--local", is_flag=True, help="The runs of this machine, in the folder runs.")
@output_option(Format.TABLE, Format.WIDE, Format.JSON, Format.YAML)
@cluster_options
def command(*, all_namespaces: bool, local: bool, form: Format, context: str | None, namespace: str | None) -> None:
    """List jobs: phase, ready replicas, progress, time left, GPUs. With --local, the runs of this machine."""
    if local:
        if all_namespaces or context or namespace:
            raise CliError("--local is given beside an option for clusters", "keep one of them")
        _show_local(form)
        return
    with connected(context, namespace) as client:
        jobs = client.list(all_namespaces=all_namespaces)
        show(jobs, form, namespaces=all_namespaces)
        if unseen := [job.name for job in jobs if unseen_seconds(job.raw, datetime.now(UTC))]:
            what = f"note: the operator has not looked at {', '.join(unseen)}: it is not running, or does not watch"
            click.echo(f"{what} this namespace; see tfgpu doctor", err=True)
        if not jobs:
            where = "the cluster" if all_namespaces else f"the namespace {client.namespace}; -A shows those of all"
            click.echo(f"there is no job in {where}", err=True)


def _show_local(form: Format) -> None:
    found = runs()
    if form in {Format.JSON, Format.YAML}:
        click.echo(data({"apiVersion": "v1", "kind": "List", "items": [job for _, job in found]}, form))
        return
    rows = [[folder.path.name, *_state(folder, job), shown(Path.cwd() / folder.output)] for folder, job in found]
    click.echo(table(["RUN", "PHASE", "SAVED STEP", "STRATEGY", "RESULTS"], rows))
    if not found:
        click.echo(f"there is no run in {RUNS}/; tfgpu run FILE --local makes one", err=True)


def _state(folder: Folder, job: Object) -> list[str]:
    """Its phase, the step of its last save, and its strategy."""
    phase = str((job.get("status") or {}).get("phase") or "Pending")
    if phase not in _ENDED:
        phase = "Running" if folder.is_running() else "Stopped"
    step = folder.last_step()
    return [phase, "-" if step is None else str(step), str(job["spec"].get("strategy", "-"))]
