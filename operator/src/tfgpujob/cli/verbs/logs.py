"""`tfgpu logs`: what all replicas print."""

from __future__ import annotations

import sys

import click

from tfgpujob.cli.cluster import cluster_verb, job_name
from tfgpujob.cli.output import coloured, log_line
from tfgpujob.client import Client
from tfgpujob.names import Role

_COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "bright_cyan", "bright_yellow", "bright_green")


@click.command()
@job_name
@click.option("-f", "--follow", is_flag=True, help="Go on, through restarts, until the job has finished.")
@click.option("--tail", type=click.IntRange(min=0), help="Begin with so many lines of each replica.")
@click.option("--role", type=click.Choice([str(role) for role in Role]), help="Only of this role.")
@click.option("--index", type=click.IntRange(min=0), help="Only the replica of this index.")
@click.option("--no-prefix", is_flag=True, help="Leave out which replica says it.")
@cluster_verb
def command(
    client: Client,
    name: str,
    *,
    follow: bool,
    tail: int | None,
    role: str | None,
    index: int | None,
    no_prefix: bool,
) -> None:
    """Print the logs of all replicas, each in its colour."""
    printed, unfinished = False, ""
    for line in client.logs(name, follow=follow, tail=tail, role=role, index=index):
        who = f"{line.role}-{line.index}"
        colour = _COLOURS[(list(Role).index(Role(line.role)) + line.index) % len(_COLOURS)]
        printed = True
        text = log_line(line.text) if sys.stdout.isatty() else line.text
        # A line that is too long to be held comes in pieces.
        goes_on = unfinished == line.pod
        between = "\n" if unfinished and not goes_on else ""
        start = "" if goes_on or no_prefix else f"{coloured(who, colour)} | "
        click.echo(f"{between}{start}{text}", nl=line.ends)
        unfinished = "" if line.ends else line.pod
    if not printed:
        click.echo(f"no such replica of {name} has printed anything; tfgpu describe {name} shows its pods", err=True)
