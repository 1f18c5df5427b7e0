"""`tfgpu plot`: the curves of a job in the terminal."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Final

import click

from tfgpujob.cli.cluster import cluster_options, connected, job_name
from tfgpujob.cli.verbs import Heading
from tfgpujob.exits import CliError, Exit
from tfgpujob.local.folder import RUNS
from tfgpujob.ui.seen import Seen
from tfgpujob.ui.sources import LocalRuns
from tfgpujob.ui.terminal import plot

PLACE: Final = Heading.IN_A_CLUSTER, 66


@click.command()
@job_name
@click.option("--local", is_flag=True, help="A run of this machine, without a cluster.")
@click.option("--dir", "directory", type=click.Path(path_type=Path), help="Folder of that run. [default: runs/NAME]")
@cluster_options
def command(name: str, *, local: bool, directory: Path | None, context: str | None, namespace: str | None) -> None:
    """Draw the curves of a job in the terminal: loss, metrics, examples a second and seconds of a step."""
    if local or directory is not None:
        series = run_here(directory or RUNS / name).series
    else:
        with connected(context, namespace) as client:
            series = client.series(name)
    if not series:
        problem = f"no curves of {name} are known"
        fix = "the bundled trainer reports them from its first progress line on, as long as its pod exists"
        raise CliError(problem, fix, Exit.NOT_FOUND)
    click.echo(plot(series, min(100, shutil.get_terminal_size().columns)))


def run_here(folder: Path) -> Seen:
    """The run in a folder of this machine. Raises CliError if none is there."""
    whole = folder.resolve()
    try:
        return asyncio.run(LocalRuns(whole.parent).curves(f"{whole.parent.name}/{whole.name}"))
    except LookupError as error:
        raise CliError(f"{folder}: no run is there", "name its folder with --dir", Exit.NOT_FOUND) from error
