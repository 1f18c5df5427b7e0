"""`tfgpu get`: one job."""

from __future__ import annotations

from typing import Final

import click

from tfgpujob.cli.cluster import cluster_verb, job_name
from tfgpujob.cli.options import output_option
from tfgpujob.cli.output import Format, data
from tfgpujob.cli.rows import show
from tfgpujob.cli.verbs import Heading
from tfgpujob.client import Client

PLACE: Final = Heading.IN_A_CLUSTER, 30


@click.command()
@job_name
@output_option(Format.TABLE, Format.WIDE, Format.JSON, Format.YAML)
@cluster_verb
def command(client: Client, name: str, form: Format) -> None:
    """Show one job as a line, or whole as JSON or YAML."""
    job = client.get(name)
    if form in {Format.JSON, Format.YAML}:
        click.echo(data(job.raw, form))
    else:
        show([job], form)
        if job.refusal and not job.finished:
            click.echo(f"{name} is not accepted: {job.refusal.message}", err=True)
