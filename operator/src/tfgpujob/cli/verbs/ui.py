"""`tfgpu ui`: jobs in a browser."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Final

import click

from tfgpujob.cli.cluster import cluster_options, errors_explained
from tfgpujob.cli.verbs import Heading
from tfgpujob.client.asynchronous import AsyncClient
from tfgpujob.exits import CliError
from tfgpujob.kube.connection import Connection
from tfgpujob.local.folder import RUNS
from tfgpujob.ui.server import PORT, serving
from tfgpujob.ui.sources import Cluster, LocalRuns, Source

PLACE: Final = Heading.IN_A_CLUSTER, 65


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="0: any free one.")
@click.option(
    "--local",
    type=click.Path(path_type=Path, file_okay=False),
    is_flag=False,
    flag_value=str(RUNS),
    help="The runs in this folder of this machine, without a cluster. [default: runs]",
)
@cluster_options
def command(*, port: int, local: Path | None, context: str | None, namespace: str | None) -> None:
    """Show jobs in a browser, until ^C: what each does and why, its curves, what its time was spent on; several side by
    side.

    It listens only on this machine, at a URL with a random token, and reads with your rights. It changes nothing.
    """
    if local is not None:
        asyncio.run(_until_interrupted(LocalRuns(local.resolve()), port))
        return
    with errors_explained():
        asyncio.run(_of_cluster(port, context, namespace))


async def _of_cluster(port: int, context: str | None, namespace: str | None) -> None:
    connection = await Connection.connect(context)
    async with AsyncClient(connection, namespace) as client:
        source = Cluster(client, connection)
        await source.jobs()  # reports problems with the cluster or the rights before a page is opened
        await _until_interrupted(source, port)


async def _until_interrupted(source: Source, port: int) -> None:
    try:
        async with serving(source, port) as address:
            click.echo(f"jobs: {address}   (^C ends it)")
            await asyncio.Event().wait()
    except OSError as error:
        problem = f"port {port}: {os.strerror(error.errno or 0)}"
        raise CliError(problem, "choose another with --port; 0 takes any free one") from error
