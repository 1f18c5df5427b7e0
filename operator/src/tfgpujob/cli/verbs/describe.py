"""`tfgpu describe`: what a job does, why it waits, what went wrong."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import click

from tfgpujob.cli.cluster import cluster_verb, job_name
from tfgpujob.cli.verbs import Heading
from tfgpujob.client import Client
from tfgpujob.describe import describe
from tfgpujob.printable import printable

PLACE: Final = Heading.IN_A_CLUSTER, 40


@click.command()
@job_name
@cluster_verb
def command(client: Client, name: str) -> None:
    """Show what a job does, why it waits, what went wrong, and what to do next."""
    job = client.get(name)
    page = describe(job.raw, client.pods(name), client.events(name), client.nodes(), datetime.now(UTC))
    click.echo(printable(page))
