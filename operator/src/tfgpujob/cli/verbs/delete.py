"""`tfgpu delete`."""

from __future__ import annotations

from typing import Final

import click

from tfgpujob.cli.cluster import cluster_verb, job_name
from tfgpujob.cli.verbs import Heading
from tfgpujob.client import Client

PLACE: Final = Heading.IN_A_CLUSTER, 120


@click.command()
@job_name
@click.option("--keep-pods", is_flag=True, help="Leave its pods and its service as they are.")
@cluster_verb
def command(client: Client, name: str, *, keep_pods: bool) -> None:
    """Delete a job with its pods."""
    client.delete(name, propagation="Orphan" if keep_pods else "Background")
    click.echo(f"{name} is deleted")
