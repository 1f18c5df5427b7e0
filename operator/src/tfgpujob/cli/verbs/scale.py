"""`tfgpu scale`."""

from __future__ import annotations

from typing import Final

import click

from tfgpujob.cli.cluster import cluster_verb, job_name, to_copy
from tfgpujob.cli.verbs import Heading
from tfgpujob.client import Client
from tfgpujob.exits import CliError
from tfgpujob.units import counted

PLACE: Final = Heading.IN_A_CLUSTER, 95


@click.command()
@job_name
@click.option("--workers", type=click.IntRange(min=1), required=True, help="The new number of workers.")
@cluster_verb
def command(client: Client, name: str, workers: int) -> None:
    """Continue with another number of workers.

    An elastic job (worker.minReplicas, worker.maxReplicas) is resized while it runs: with runPolicy.recovery InPlace,
    under ParameterServer and in mode predict, the other pods keep running. Otherwise all restart from a checkpoint. Any
    other job must be suspended.
    """
    job = client.get(name)
    spec = job.spec
    if job.finished:
        raise CliError(f"{name} has finished", to_copy(f"run it again: tfgpu restart {name}", name))
    if not spec.elastic and not spec.run_policy.suspend:
        fix = f"tfgpu suspend {name}, then scale, then tfgpu resume {name}"
        raise CliError(
            f"{name} is not elastic: the number of its workers can't change while it runs", to_copy(fix, name)
        )
    client.scale(name, workers)
    click.echo(f"{name} will continue with {counted(workers, 'worker')}")
