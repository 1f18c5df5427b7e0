"""`tfgpu suspend`."""

from __future__ import annotations

from typing import Final

import click

from tfgpujob.cli.cluster import cluster_verb, job_name
from tfgpujob.cli.verbs import Heading
from tfgpujob.client import Client

PLACE: Final = Heading.IN_A_CLUSTER, 90


@click.command()
@job_name
@cluster_verb
def command(client: Client, name: str) -> None:
    """Stop the pods of a job and keep it."""
    finished = client.suspend(name).finished
    click.echo(f"{name} has finished already" if finished else f"Suspending {name}; a trainer saves a checkpoint first")
