"""`tfgpu delete`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import click

from tfgpujob.cli.cluster import cluster_verb, job_names
from tfgpujob.cli.verbs import Heading
from tfgpujob.client import ApiError, Client
from tfgpujob.kube.errors import MISSING

PLACE: Final = Heading.IN_A_CLUSTER, 120


@click.command()
@job_names
@click.option("--keep-pods", is_flag=True, help="Leave its pods and its service as they are.")
@cluster_verb
def command(client: Client, names: Sequence[str], *, keep_pods: bool) -> None:
    """Delete jobs with their pods. If one does not exist, the others are still deleted."""
    absent: ApiError | None = None
    for name in names:
        try:
            client.delete(name, propagation="Orphan" if keep_pods else "Background")
            click.echo(f"{name} is deleted")
        except ApiError as error:
            if error.code != MISSING:
                raise
            absent = absent or error
    if absent is not None:
        raise absent
