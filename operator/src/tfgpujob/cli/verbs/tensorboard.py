"""`tfgpu tensorboard`: the curves of a job."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NoReturn

import click

from tfgpujob.cli.cluster import cluster_options, connected, job_name
from tfgpujob.cli.own_pods import once_it_works
from tfgpujob.cli.verbs import Heading
from tfgpujob.client.viewer import PORT
from tfgpujob.exits import CliError, Exit
from tfgpujob.local.folder import RUNS, Folder, claim_of
from tfgpujob.local.tensorboard import command_line

PLACE: Final = Heading.IN_A_CLUSTER, 70


@click.command()
@job_name
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="0: any free one.")
@click.option(
    "--logdir",
    help="Directory of the events, as the job's pods see it. [default: tensorboard/ in the output directory]",
)
@click.option("--image", help="With TensorBoard in it. [default: the job's own]")
@click.option("--local", is_flag=True, help="On a run of this machine, without a cluster.")
@click.option("--dir", "directory", type=click.Path(path_type=Path), help="Folder of that run. [default: runs/NAME]")
@cluster_options
def command(
    name: str,
    *,
    port: int,
    logdir: str | None,
    image: str | None,
    local: bool,
    directory: Path | None,
    context: str | None,
    namespace: str | None,
) -> None:
    """Show the curves of a job in a browser, until ^C.

    A small pod runs TensorBoard from the job's image on the job's volume, and a port of this machine is forwarded to
    it. The pod is created with your rights, which must include pods and pods/portforward. It is deleted with ^C, with
    the job, or after 8 hours.
    """
    if local or directory is not None:
        _local(directory or RUNS / name, port)
    with (
        connected(context, namespace) as client,
        once_it_works(client.tensorboard(name, port=port, logdir=logdir, image=image)) as states,
    ):
        for seen in states:
            click.echo(f"TensorBoard of {name}: {seen.url}   (^C ends it)")
    raise CliError(f"the pod of TensorBoard is gone, and perhaps {name} with it", "see tfgpu list", Exit.NOT_FOUND)


def _local(folder: Path, port: int) -> NoReturn:
    """Replace this process by TensorBoard, in this Python's environment."""
    job = Folder(folder).job()
    events = Folder(folder, claim_of(job) if job is not None else None).output / "tensorboard"
    if not events.is_dir():
        raise CliError(f"{events}: no such folder", "name the folder of the run with --dir", Exit.NOT_FOUND)
    if find_spec("tensorboard") is None:
        raise CliError("TensorBoard is not installed here", "pip install 'tfgpujob[local]', which brings it")
    os.execv(sys.executable, command_line(events, port))  # noqa: S606 - no shell, and no other program than this Python
