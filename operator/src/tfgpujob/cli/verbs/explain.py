"""`tfgpu explain`: the pods of a job, and how it would behave, without a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import click

from tfgpujob import names
from tfgpujob.api import gpus
from tfgpujob.cli import options
from tfgpujob.cli.behaviour import sentences
from tfgpujob.cli.on_gpus import on_gpus
from tfgpujob.cli.output import Format, coloured, data, sentences_table, table
from tfgpujob.cli.verbs import Heading
from tfgpujob.convert.code import job_name
from tfgpujob.core.observed.plan import Plan, replica_specs, resolve
from tfgpujob.core.observed.snapshot import Object
from tfgpujob.core.pods.service import build_service
from tfgpujob.local import offline
from tfgpujob.local.job_file import JobFile, job_of_script, kind_of_file, read_jobs
from tfgpujob.local.preflight import refuse_shared_loop, warnings

PLACE: Final = Heading.WITHOUT_A_CLUSTER, 20


@click.command()
@options.file
@options.workers
@options.gpus
@click.option(
    "--free", type=click.IntRange(min=0), multiple=True, help="Say what it would do on this number of free GPUs."
)
@options.output_option(Format.TABLE, Format.WIDE, Format.JSON, Format.YAML)
def command(file: str, workers: int, gpus: int, free: tuple[int, ...], form: Format) -> None:
    """Show what each job in the file would become: pods, TF_CONFIG, warnings, behaviour.

    Needs no cluster. A job that the operator would refuse is refused with the same message and exit code 2.
    -o wide shows every TF_CONFIG, -o yaml the objects themselves. --free may be given several times.
    """
    if file.endswith(".py"):
        # The name that `submit` uses, without the digest: the files of --with are unknown here.
        code = {"configMap": {"name": f"{job_name(Path(file))}-code"}}
        found: Sequence[JobFile] = [job_of_script(file, workers=workers, gpus=gpus, trainer={"code": code})]
        click.echo(f"{Path(file).name} is {kind_of_file(file)}", err=True)
    else:
        options.refuse_of_python(file, besides={"file", "free", "form"})
        found = read_jobs(file)
        for job_file in found:
            refuse_shared_loop(job_file.spec, Path(file).parent)
    if form in {Format.JSON, Format.YAML}:
        told = [_for_programs(job_file, free) for job_file in found]
        click.echo(data(told[0] if len(told) == 1 else told, form))
        return
    click.echo("\n\n".join(_for_people(job_file, free, every=form is Format.WIDE) for job_file in found))


def _for_people(file: JobFile, free: tuple[int, ...], *, every: bool) -> str:
    plan = resolve(file.spec, offline.CONFIG)
    pods = offline.pods(file, plan)
    parts = (_head(file, plan), _pods(file, plan, pods), _tf_config(pods, every=every), _words(file, plan, free))
    return "\n\n".join(parts)


def _for_programs(file: JobFile, free: tuple[int, ...]) -> dict[str, Any]:
    plan = resolve(file.spec, offline.CONFIG)
    job = {**file.job, "metadata": {**file.job["metadata"], "uid": offline.UNKNOWN_UID}}
    return {
        "job": file.job["metadata"]["name"],
        "warnings": list(warnings(file.spec)),
        "behaviour": [{"topic": topic, "text": text} for topic, text in _expected(file, plan, free)],
        "objects": [build_service(job), *offline.claims(file, plan), *offline.pods(file, plan)],
    }


def _head(file: JobFile, plan: Plan) -> str:
    counts = ", ".join(f"{count} × {role}" for role, count in plan.counts.items())
    return f"{coloured(file.job['metadata']['name'], 'cyan', bold=True)}: {file.spec.strategy}, {counts}"


def _pods(file: JobFile, plan: Plan, pods: tuple[Object, ...]) -> str:
    specs = replica_specs(file.spec)
    rows = [
        [
            pod["metadata"]["name"],
            str(gpus(file.spec, role, specs[role])),
            _image(plan.images[role]),
            offline.own_address(pod) or "-",
        ]
        for (role, _), pod in zip(plan.members.pods, pods, strict=True)
    ]
    service = f"service {file.job['metadata']['name']}: headless, it gives the pods their names"
    return f"{table(['POD', 'GPUS', 'IMAGE', 'LISTENS ON'], rows)}\n{service}"


def _image(image: str) -> str:
    return "(the operator's trainer image)" if image == offline.CONFIG.trainer_image else image


def _tf_config(pods: tuple[Object, ...], *, every: bool) -> str:
    """TF_CONFIG of the first pod of each role, or of every pod."""
    shown: dict[str, str] = {}
    for pod in pods:
        key = pod["metadata"]["name"] if every else pod["metadata"]["labels"][names.LABEL_REPLICA_TYPE]
        shown.setdefault(key, f"{pod['metadata']['name']}  {offline.variable(pod, 'TF_CONFIG') or 'none'}")
    return "\n".join(["TF_CONFIG", *(f"  {line}" for line in shown.values())])


def _expected(file: JobFile, plan: Plan, free: tuple[int, ...]) -> Iterator[tuple[str, str]]:
    yield from sentences(file.spec, plan)
    for count in free:
        yield from on_gpus(file.spec, plan, count)


def _words(file: JobFile, plan: Plan, free: tuple[int, ...]) -> str:
    warned = [(coloured("warning", "yellow"), text) for text in warnings(file.spec)]
    expected = [(coloured(topic, "green"), text) for topic, text in _expected(file, plan, free)]
    return sentences_table(["ABOUT", "WHAT TO EXPECT"], [*warned, *expected])
