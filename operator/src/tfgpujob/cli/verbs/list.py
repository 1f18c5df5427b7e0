"""`tfgpu list`: all jobs."""

from __future__ import annotations

from typing import Final

import click

from tfgpujob.cli.cluster import cluster_verb
from tfgpujob.cli.options import output_option
from tfgpujob.cli.output import Format
from tfgpujob.cli.rows import show
from tfgpujob.cli.verbs import Heading
from tfgpujob.client import Client

PLACE: Final = Heading.IN_A_CLUSTER, 20


@click.command()
@click.option("-A", "--all-namespaces", is_flag=True, help="Of the whole cluster.")
@output_option(Format.TABLE, Format.WIDE, Format.JSON, Format.YAML)
@cluster_verb
def command(client: Client, *, all_namespaces: bool, form: Format) -> None:
    """List jobs: phase, ready replicas, progress, time left, GPUs."""
    jobs = client.list(all_namespaces=all_namespaces)
    show(jobs, form, namespaces=all_namespaces)
    if not jobs:
        where = "the cluster" if all_namespaces else f"the namespace {client.namespace}; -A shows those of all"
        click.echo(f"there is no job in {where}", err=True)
