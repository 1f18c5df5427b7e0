"""`tfgpu top`: the jobs that run, over and over."""

from __future__ import annotations

import sys
import time

import click

from tfgpujob.cli.cluster import cluster_verb
from tfgpujob.cli.output import Format
from tfgpujob.cli.rows import show
from tfgpujob.client import Client


@click.command()
@click.option("-A", "--all-namespaces", is_flag=True, help="Of the whole cluster.")
@click.option("--every", type=click.FloatRange(min=1), default=5, show_default=True, help="Seconds between two looks.")
@cluster_verb
def command(client: Client, *, all_namespaces: bool, every: float) -> None:
    """Show the jobs that have not finished, with loss and throughput, until ^C. Once, where it is no terminal."""
    while True:
        jobs = [job for job in client.list(all_namespaces=all_namespaces) if not job.finished]
        if sys.stdout.isatty():
            click.clear()
        show(jobs, Format.WIDE, namespaces=all_namespaces)
        if not sys.stdout.isatty():
            return
        time.sleep(every)
