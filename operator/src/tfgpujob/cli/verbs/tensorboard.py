"""`tfgpu tensorboard`: the curves of a job."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NoReturn

import click

from tfgpujob.cli.cluster import cluster_options, connected, job_name
from tfgpujob.cli.output import StatusLine
from tfgpujob.cli.verbs import Heading
from tfgpujob.client.viewer import PORT
from tfgpujob.exits import CliError, Exit
from tfgpujob.local.folder import RUNS, Folder, claim_of
from tfgpujob.local.tensorboard import command_line

PLACE: Final = Heading.IN_A_CLUSTER, 70
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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
    progress = StatusLine()
    with left_once(), connected(context, namespace) as client:
        try:
            for seen in client.tensorboard(name, port=port, logdir=logdir, image=image):
                if seen.url is None:
                    progress.show(f"{seen.pod}: {seen.waiting}")
                    continue
                progress.clear()
                click.echo(f"TensorBoard of {name}: {seen.url}   (^C ends it)")
        finally:
            progress.clear()
    raise CliError(f"the pod of TensorBoard is gone, and perhaps {name} with it", "see tfgpu list", Exit.NOT_FOUND)


@contextmanager
def left_once() -> Iterator[None]:
    """The first of these signals ends the iteration. Later ones are ignored, so that the pod is deleted.

    That takes seconds at most. A closed terminal must not leave a pod behind either.
    """
    before = {number: signal.getsignal(number) for number in _ENDING}

    def leave(received: int, _: object) -> NoReturn:
        for number in _ENDING:
            signal.signal(number, signal.SIG_IGN)
        if received == signal.SIGINT:
            raise KeyboardInterrupt
        sys.exit(128 + received)

    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _local(folder: Path, port: int) -> NoReturn:
    """Replace this process by TensorBoard, in this Python's environment."""
    job = Folder(folder).job()
    events = Folder(folder, claim_of(job) if job is not None else None).output / "tensorboard"
    if not events.is_dir():
        raise CliError(f"{events}: no such folder", "name the folder of the run with --dir", Exit.NOT_FOUND)
    if find_spec("tensorboard") is None:
        raise CliError("TensorBoard is not installed here", "pip install 'tfgpujob[local]', which brings it")
    os.execv(sys.executable, command_line(events, port))  # noqa: S606 - no shell, and no other program than this Python
