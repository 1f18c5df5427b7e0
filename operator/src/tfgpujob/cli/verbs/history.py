"""`tfgpu history`: jobs that were deleted."""

from __future__ import annotations

from typing import Final

import click

from tfgpujob.cli.cluster import cluster_verb, job_argument
from tfgpujob.cli.options import output_option, page_option
from tfgpujob.cli.output import Format
from tfgpujob.cli.rows import show
from tfgpujob.cli.verbs import Heading
from tfgpujob.client import ApiError, Client
from tfgpujob.exits import CliError, Exit
from tfgpujob.kube.errors import UNAUTHORIZED

PLACE: Final = Heading.IN_A_CLUSTER, 22


@click.command()
@job_argument(required=False)
@click.option("-A", "--all-namespaces", is_flag=True, help="The jobs of all namespaces.")
@page_option
@output_option(Format.TABLE, Format.WIDE, Format.JSON, Format.YAML)
@cluster_verb
def command(client: Client, name: str | None, page: str, form: Format, *, all_namespaces: bool) -> None:
    """List jobs that were deleted, those of one name or all, as the operator last saw them.

    The operator must keep a history (history.enabled and ui.enabled in its chart). `tfgpu describe NAME` says what
    happened to the last job of a name.
    """
    try:
        jobs = client.deleted(name or "", all_namespaces=all_namespaces, page=page)
    except ApiError as error:
        if error.code == UNAUTHORIZED:
            raise
        fix = "an administrator sets history.enabled and ui.enabled in the operator's chart; --page names another page"
        raise CliError(f"the page {page} does not answer: {error.message}", fix, Exit.CLUSTER) from error
    show(jobs, form, namespaces=all_namespaces)
    if not jobs:
        where = "the cluster" if all_namespaces else f"the namespace {client.namespace}; -A shows those of all"
        click.echo(f"no deleted job is known in {where}", err=True)
