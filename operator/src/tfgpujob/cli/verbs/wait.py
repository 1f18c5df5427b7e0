"""`tfgpu wait`: wait for a condition of a job."""

from __future__ import annotations

from typing import Final

import click

from tfgpujob.cli.cluster import cluster_verb, job_name, timeout, to_copy
from tfgpujob.cli.verbs import Heading
from tfgpujob.client import Client, Job
from tfgpujob.exits import CliError, Exit
from tfgpujob.names import Condition, Phase

PLACE: Final = Heading.IN_A_CLUSTER, 80


@click.command()
@job_name
@click.option(
    "--for",
    "condition",
    type=click.Choice([str(c) for c in Condition]),
    default=str(Condition.FINISHED),
    show_default=True,
    help="The condition to wait for.",
)
@timeout
@cluster_verb
def command(client: Client, name: str, condition: str, timeout_seconds: float | None) -> int:
    """Wait for a condition, or for the end of the job. Exit code 1: the job failed."""
    if condition != Condition.SUSPENDED and _is_suspended(client.get(name)):
        click.echo(to_copy(f"{name} is suspended, and waits for: tfgpu resume {name}", name), err=True)
    try:
        job = client.wait(name, condition=condition, timeout_seconds=timeout_seconds)
    except TimeoutError as error:
        job = client.get(name)
        fix = f"tfgpu resume {name}" if _is_suspended(job) else f"it is not ended: look with tfgpu describe {name}"
        problem = f"{name} is {job.status.phase or 'not seen'} after {timeout_seconds:g} s, and not {condition}"
        raise CliError(problem, to_copy(fix, name), Exit.TIMEOUT) from error
    click.echo(f"{name} is {job.status.phase}")
    return int(Exit.JOB_FAILED if job.failed else Exit.OK)


def _is_suspended(job: Job) -> bool:
    """Suspended by the user or for idle GPUs, and not by a queue, which resumes the job by itself."""
    return bool((job.raw["spec"].get("runPolicy") or {}).get("suspend")) or job.status.phase is Phase.SUSPENDED
