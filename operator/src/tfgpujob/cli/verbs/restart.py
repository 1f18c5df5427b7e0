"""`tfgpu restart`."""

from __future__ import annotations

from typing import Final

import click

from tfgpujob.cli.cluster import cluster_verb, job_name, timeout
from tfgpujob.cli.verbs import Heading
from tfgpujob.client import Client

PLACE: Final = Heading.IN_A_CLUSTER, 110


@click.command()
@job_name
@timeout
@cluster_verb
def command(client: Client, name: str, timeout_seconds: float | None) -> None:
    """Stop all pods and start them again, from the last checkpoint.

    A job that has finished is deleted and created anew: its pods and their logs go.
    """
    client.restart(name, timeout_seconds=timeout_seconds)
    click.echo(f"{name} starts again")
