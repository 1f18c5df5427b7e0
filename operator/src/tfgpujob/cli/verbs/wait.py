"""`tfgpu wait`: until a job has got somewhere."""

from __future__ import annotations

from typing import Final

import click

from tfgpujob.cli.cluster import cluster_verb, job_name, timeout
from tfgpujob.cli.verbs import Heading
from tfgpujob.client import Client
from tfgpujob.exits import Exit
from tfgpujob.names import Condition

PLACE: Final = Heading.IN_A_CLUSTER, 80


@click.command()
@job_name
@click.option(
    "--for",
    "condition",
    type=click.Choice([str(c) for c in Condition]),
    default=str(Condition.FINISHED),
    show_default=True,
    help="The condition to wait for.",
)
@timeout
@cluster_verb
def command(client: Client, name: str, condition: str, timeout_seconds: float | None) -> int:
    """Wait for a condition, or for the end of the job. Exit code 1: the job failed."""
    job = client.wait(name, condition=condition, timeout_seconds=timeout_seconds)
    click.echo(f"{name} is {job.status.phase}")
    return int(Exit.JOB_FAILED if job.failed else Exit.OK)
