"""`tfgpu resume`."""

from __future__ import annotations

from typing import Final

import click

from tfgpujob.cli.cluster import cluster_verb, job_name
from tfgpujob.cli.verbs import Heading
from tfgpujob.client import Client

PLACE: Final = Heading.IN_A_CLUSTER, 100


@click.command()
@job_name
@cluster_verb
def command(client: Client, name: str) -> None:
    """Start a suspended job again, from its last checkpoint."""
    finished = client.resume(name).finished
    click.echo(f"{name} has finished already" if finished else f"Resuming {name}")
