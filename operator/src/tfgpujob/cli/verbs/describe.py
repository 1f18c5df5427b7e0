"""`tfgpu describe`: what a job does, why it waits, what went wrong."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import click

from tfgpujob.cli.cluster import cluster_verb, job_name, to_copy
from tfgpujob.cli.options import page_option
from tfgpujob.cli.verbs import Heading
from tfgpujob.client import ApiError, Client
from tfgpujob.describe import describe
from tfgpujob.exits import CliError, Exit
from tfgpujob.kube.errors import MISSING
from tfgpujob.printable import printable

PLACE: Final = Heading.IN_A_CLUSTER, 40


@click.command()
@job_name
@page_option
@cluster_verb
def command(client: Client, name: str, page: str) -> None:
    """Show what a job does, why it waits, what went wrong, and what to do next; also after it was deleted, if the
    operator keeps a history.
    """
    now = datetime.now(UTC)
    try:
        job = client.get(name)
        text = describe(job.raw, client.pods(name), client.events(name), client.nodes(), now)
    except ApiError as error:
        if error.code != MISSING:
            raise
        try:
            found = client.deleted(name, page=page)
        except ApiError as unknown:
            problem = f"{error.message}; if it was deleted, the history does not answer: {unknown.message}"
            raise CliError(problem, "see tfgpu list, tfgpu history", Exit.NOT_FOUND) from unknown
        if not found:
            raise
        text = describe(found[0].raw, (), (), None, now)
    click.echo(printable(to_copy(text, name)))
