"""`tfgpu submit`: a file becomes a job in the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click
import yaml

from tfgpujob import names
from tfgpujob.api import JobSpec, parse_job
from tfgpujob.cli import options
from tfgpujob.cli.cluster import cluster_options, connected, to_copy
from tfgpujob.cli.output import Format, data
from tfgpujob.cli.revisions import pinned
from tfgpujob.cli.verbs import Heading
from tfgpujob.client import job_of_file
from tfgpujob.convert.code import CODE_LIMIT, job_name, wheel_lines
from tfgpujob.core.advice import NO_CLAIM
from tfgpujob.core.observed.ownership import is_dispatched
from tfgpujob.core.observed.snapshot import Object
from tfgpujob.exits import CliError, Exit
from tfgpujob.kubectl_yaml import load
from tfgpujob.local.folder import runs
from tfgpujob.local.job_file import kind_of_file, read_jobs, with_namespace
from tfgpujob.local.preflight import warnings
from tfgpujob_contract.python_file import Kind, imported_beside, named_beside
from tfgpujob_contract.strategies import Strategy

PLACE: Final = Heading.IN_A_CLUSTER, 10

_FOR_BOTH = {"file", "args", "replace", "dry_run", "context", "namespace"}


@click.command()
@options.file
@click.argument("args", metavar="[-- ARG…]", nargs=-1, type=click.UNPROCESSED)
@click.option("--name", help="Name of a Python file's job. [default: the file's name]")
@options.workers
@options.gpus
@click.option(
    "--strategy", type=click.Choice([str(s) for s in Strategy]), help="By default what workers and GPUs need."
)
@click.option("--batch", type=click.IntRange(min=1), help="Global batch size; a file with model() and data() needs it.")
@click.option(
    "--epochs", type=click.IntRange(min=1), default=1, show_default=True, help="Epochs of a Python file's job."
)
@click.option("--param", "params", multiple=True, metavar="KEY=VALUE", help="For model() and data(); may be repeated.")
@click.option("--claim", metavar="NAME[/FOLDER]", help="PersistentVolumeClaim for checkpoints and the model.")
@click.option(
    "--with",
    "extra",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Another file or folder of the code, or a wheel.",
)
@options.code("Folder in which the code runs; all its files are sent. [default: the Python file alone]")
@click.option(
    "--env", "variables", multiple=True, metavar="NAME=VALUE", help="Environment variable of all pods; not for secrets."
)
@options.requirements
@click.option("--replace", is_flag=True, help="Delete the job of that name first, with its pods, if there is one.")
@click.option("--dry-run", is_flag=True, help="Print what would be created; a Python file needs no cluster for it.")
@cluster_options
def command(
    file: str, *, replace: bool, dry_run: bool, context: str | None, namespace: str | None, **flags: Any
) -> None:
    """Create the jobs of a YAML file, or one of a Python file: with model() and data(split), or a script with fit().

    The Python file and the files of --with are stored in a ConfigMap that belongs to the job: a folder with all its
    files, as /code/FOLDER; a wheel is installed. --code leaves out hidden files and the folder runs. What is after --
    are the arguments of a script.
    """
    made = _of_python(Path(file), **flags) if file.endswith(".py") else None
    if made and dry_run:
        _print(*made)
        return
    # Before a cluster is looked for: a file with a mistake is refused for it, with or without one.
    jobs, others = made or _of_yaml(file)
    with connected(context, namespace) as client:
        if dry_run:
            _print([with_namespace(job, client.namespace) for job in jobs], others)
            return
        if made:
            click.echo(f"{Path(file).name} is {kind_of_file(file)}")
        for number, job in enumerate(jobs):
            created = client.submit(job, () if number else others, replace=replace)
            elsewhere = is_dispatched(created.raw)
            follow = f"tfgpu describe {created.name}" if elsewhere else f"tfgpu logs {created.name} -f"
            text = f"{created.namespace}/{created.name} is created; follow it: {follow}"
            click.echo(
                to_copy(text, created.name, created.namespace if created.namespace != client.namespace else None)
            )
            _warn(created.spec)
            if created.output_goes_with_pods:
                option = "--claim NAME" if made else "spec.trainer.output.claim"
                what = f"warning: checkpoints, the model and all other files of {created.name} go with its pods"
                click.echo(f"{what}; {option} keeps them in a PersistentVolumeClaim", err=True)
            if elsewhere:
                continue  # its claims are there too
            for claim in client.absent_claims(created):
                what = f"warning: there is no PersistentVolumeClaim {claim}, and {created.name} waits for it"
                click.echo(f"{what}; see kubectl get pvc -n {created.namespace}", err=True)


def _warn(spec: JobSpec) -> None:
    """The warnings of `tfgpu explain`. The one about a missing claim names the option that sets it."""
    for text in warnings(spec):
        if text != NO_CLAIM:
            click.echo(f"warning: {text}", err=True)


def _print(jobs: Sequence[Object], others: Sequence[Object]) -> None:
    for obj in (*others, *jobs):
        click.echo(f"---\n{data(obj, Format.YAML)}")


def _of_yaml(file: str) -> tuple[Sequence[Object], Sequence[Object]]:
    context = click.get_current_context()
    if context.params["args"]:
        fix = f"write a script's arguments into {file}, as spec.trainer.args"
        raise CliError(f"{context.params['args'][0]} after the file is for a Python file", fix)
    options.refuse_of_python(file, besides=_FOR_BOTH)
    found = read_jobs(file, None, prepare=lambda job: pinned(job, lambda line: click.echo(line, err=True)))
    wanted = context.params["namespace"]
    for job_file in found:
        metadata = job_file.job["metadata"]
        if wanted not in {None, metadata.get("namespace", wanted)}:
            problem = f"{file} puts {metadata['name']} into the namespace {metadata['namespace']}, and -n says {wanted}"
            raise CliError(problem, "keep one of them")
    maps = [str((obj.get("metadata") or {}).get("name")) for obj in found[0].others if obj.get("kind") == "ConfigMap"]
    if len(found) > 1 and maps:
        problem = f"{file} holds {len(found)} jobs and the ConfigMap {maps[0]}, which belongs to a job and goes with it"
        raise CliError(problem, f"give each job a file of its own, or use kubectl apply -f {file}")
    return [job_file.job for job_file in found], found[0].others


def _of_python(
    file: Path,
    *,
    args: Sequence[str],
    name: str | None,
    workers: int,
    gpus: int,
    strategy: str | None,
    batch: int | None,
    epochs: int,
    params: Sequence[str],
    claim: str | None,
    extra: Sequence[Path],
    code: Path | None,
    variables: Sequence[str],
    requirements: Path | None,
) -> tuple[Sequence[Object], Sequence[Object]]:
    given = dict(_param(text) for text in params)
    trainer = _fields(file, batch, epochs, args)
    if given:
        trainer["params"] = given
    if not code:
        _warn_of_unsent(file, {sent.name for sent in extra})
    lines = [*wheel_lines(extra), *([] if requirements is None else options.required(requirements))]
    if lines:
        trainer["requirements"] = lines
    if claim:
        name_of_claim, _, folder = claim.partition("/")
        trainer["output"] = {"claim": name_of_claim, **({"subPath": folder} if folder else {})}
    try:
        job, config_map = job_of_file(
            file,
            name=name or job_name(file),
            workers=workers,
            gpus=gpus,
            strategy=Strategy(strategy) if strategy else None,
            trainer=trainer,
            extra_files=extra,
            folder=code,
        )
    except OSError as error:
        raise CliError(f"{error.filename}: {error.strerror}", "name a Python file", Exit.NOT_FOUND) from error
    except ValueError as error:
        raise CliError(str(error)) from error
    if variables:
        env = [dict(zip(("name", "value"), _pair("--env", text), strict=True)) for text in variables]
        for replica in job["spec"]["replicaSpecs"].values():
            replica["template"] = {"spec": {"containers": [{"name": names.CONTAINER, "env": env}]}}
    found = parse_job(job)
    if not isinstance(found, JobSpec):
        raise CliError("\n".join(map(str, found)))
    return (job,), (config_map,)


def _warn_of_unsent(file: Path, sent: set[str]) -> None:
    """The files and folders beside it that it imports or names, that no local run has written, and that are not
    sent."""
    imported = {*imported_beside(file)}
    local = [folder for folder, _ in runs()]
    for one in sorted(imported.union(named_beside(file)) - sent):
        path = file.parent / one
        parts = [part for part in (path, *path.rglob("*")) if part.is_file()]
        if any(folder.wrote(parts) for folder in local):
            continue
        size = sum(part.stat().st_size for part in parts)
        how = "imports" if one in imported else "names"
        what = f"warning: {file.name} {how} {one} ({size:,} bytes), which is beside it and does not go with it"
        fix = f"add --with {path}, or --code {file.parent} for the whole folder"
        if size > CODE_LIMIT:
            fix = "it is too large to be sent: download it, or bring it in an image or a volume"
        click.echo(f"{what}; {fix if one in imported else f'if it is read, {fix}'}", err=True)


def _fields(file: Path, batch: int | None, epochs: int, args: Sequence[str]) -> dict[str, Any]:
    """Fields for how long and with what batches a module trains, or the arguments of a script.

    Raises CliError for options that the file sets itself, or does not use.
    """
    if kind_of_file(str(file)) is Kind.MODULE:
        if args:
            raise CliError(f"{file} has model() and data(), and takes no arguments", "use --param, which goes to those")
        if batch is None:
            raise CliError("the global batch size is not given", "add --batch, such as --batch 128")
        return {"globalBatchSize": batch, "epochs": epochs}
    for flag in ("--batch", "--epochs", "--param"):
        if flag in options.given(besides=()):
            raise CliError(
                f"{flag} is given, and {file} is a plain script",
                "remove it: the script says it in fit(); arguments of its own stand after --",
            )
    return {"args": list(args)} if args else {}


def _pair(option: str, text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise CliError(f"{option} {text} has no value", f"write it as {option} {text}=VALUE")
    return key, value


def _param(text: str) -> tuple[str, Any]:
    key, value = _pair("--param", text)
    try:
        read = load(value)
    except yaml.YAMLError as error:
        fix = "write a number, true, a text, [a, b] or {a: b}; any other text in quotes"
        raise CliError(f"--param {key}: {value!r} is no YAML that a job can hold", fix) from error
    return key, read
