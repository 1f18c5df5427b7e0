"""`tfgpu compare`: what differs between jobs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import click

from tfgpujob.cli.cluster import cluster_options, connected, job_names
from tfgpujob.cli.options import output_option
from tfgpujob.cli.output import Format, data, table
from tfgpujob.cli.verbs import Heading
from tfgpujob.cli.verbs.plot import run_here
from tfgpujob.local.folder import RUNS
from tfgpujob.ui.other_pages import compare_page
from tfgpujob.ui.seen import Seen

PLACE: Final = Heading.IN_A_CLUSTER, 67


@click.command()
@job_names
@click.option("--local", is_flag=True, help="Runs of this machine, in the folder runs.")
@output_option(Format.TABLE, Format.JSON, Format.YAML)
@cluster_options
def command(names: Sequence[str], form: Format, *, local: bool, context: str | None, namespace: str | None) -> None:
    """Show what differs between jobs: parameters, and the last value of each curve. With -o json also what is
    equal.
    """
    if local:
        runs = [run_here(RUNS / name) for name in names]
    else:
        with connected(context, namespace) as client:
            runs = [Seen(job=client.get(name).raw, series=client.series(name)) for name in names]
    found = compare_page({str(number): run for number, run in enumerate(runs)}, datetime.now(UTC)).parameters
    if form is Format.TABLE:
        click.echo(table(["", *names], [[one.name, *one.values] for one in found if one.differs]))
    else:
        click.echo(data({one.name: dict(zip(names, one.values, strict=True)) for one in found}, form))
