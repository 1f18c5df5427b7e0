"""`tfgpu restart`."""

from __future__ import annotations

from typing import Final

import click

from tfgpujob.cli.cluster import cluster_verb, job_name, timeout, to_copy
from tfgpujob.cli.verbs import Heading
from tfgpujob.client import Client
from tfgpujob.core.observed.snapshot import Object
from tfgpujob.exits import CliError, Exit

PLACE: Final = Heading.IN_A_CLUSTER, 110


@click.command()
@job_name
@timeout
@cluster_verb
def command(client: Client, name: str, timeout_seconds: float | None) -> None:
    """Stop all pods and start them again, from the last checkpoint, with the code that the job was submitted with.

    A finished job is deleted and created again; its pods and their logs are deleted.
    """
    try:
        job = client.restart(name, timeout_seconds=timeout_seconds)
    except TimeoutError as error:
        problem = f"the pods of {name} are not gone after {timeout_seconds:g} s, and it stays suspended"
        raise CliError(problem, to_copy(f"when they are: tfgpu resume {name}", name), Exit.TIMEOUT) from error
    click.echo(f"{name} starts again{_code(job.raw)}")


def _code(job: Object) -> str:
    """The code that the job runs, if the job fixes it: later changes of the file are not sent."""
    code = (job["spec"].get("trainer") or {}).get("code") or {}
    if "configMap" in code:
        return ", with the code that it was submitted with; tfgpu submit FILE --replace sends a changed file"
    if "git" in code:
        return f", with the commit {code['git'].get('revision')} of {code['git'].get('url')}"
    return ""
