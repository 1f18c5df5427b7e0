"""`tfgpu run`: a job as processes on this machine."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import click

from tfgpujob.cli import options
from tfgpujob.cli.screen import Screen
from tfgpujob.cli.verbs import Heading
from tfgpujob.core.observed.plan import Plan
from tfgpujob.core.observed.snapshot import Object
from tfgpujob.exits import CliError, Exit
from tfgpujob.local import offline, preflight
from tfgpujob.local.devices import is_cpu_build, share_out, visible_gpus
from tfgpujob.local.folder import RUNS, Folder, claim_of, shown
from tfgpujob.local.job_file import JobFile, job_of_script, kind_of_file, on_one_machine, read_job
from tfgpujob.local.ports import Ports
from tfgpujob.local.session import Session, new_job
from tfgpujob.local.translate import Here
from tfgpujob.names import Role

PLACE: Final = Heading.WITHOUT_A_CLUSTER, 10
_NOT_AGAIN: Final = {"file", "command_line", "local", "resume", "fresh", "ui", "verbose"}
_FOR_BOTH: Final = {*_NOT_AGAIN, "directory", "code"}


@click.command()
@options.file
@click.argument("command_line", metavar="[-- ARG…|COMMAND…]", nargs=-1, type=click.UNPROCESSED)
@click.option("--local", is_flag=True, help="On this machine, without a cluster.")
@options.workers
@options.gpus
@options.requirements
@click.option("--resume", is_flag=True, help="Continue the run in the folder, from its last checkpoint.")
@click.option("--fresh", is_flag=True, help="Start from the beginning; the run in the folder is renamed, not deleted.")
@click.option("--dir", "directory", type=click.Path(path_type=Path), help="Folder of the run. [default: runs/NAME]")
@options.code("Folder in which the code runs, in place of /code. [default: where the file is]")
@click.option("--ui", is_flag=True, help="Show the run in a browser, too, for as long as it lasts.")
@click.option("-v", "--verbose", is_flag=True, help="Show every line of every replica.")
def command(
    file: str,
    command_line: tuple[str, ...],
    *,
    local: bool,
    workers: int,
    gpus: int,
    requirements: Path | None,
    resume: bool,
    fresh: bool,
    directory: Path | None,
    code: Path | None,
    ui: bool,
    verbose: bool,
) -> int:
    """Train on this machine, by the rules of the cluster.

    Planner, TF_CONFIG, restart rules and trainer are the same. ^C saves a checkpoint and stops; --resume continues,
    with the result of a run that was not stopped. A job without spec.trainer runs the command of its template, or the
    one after --. A Python file that builds and compiles a model and calls fit() needs no job file; arguments after --
    are passed to it.
    """
    if not local:
        raise CliError("run is for this machine", "add --local")
    if resume and fresh:
        raise CliError("--resume and --fresh are given together", "keep one of them")
    is_python = file.endswith(".py")
    if is_python:
        given = _job_of_script(Path(file), workers, gpus, requirements, command_line, code=code)
    else:
        options.refuse_of_python(file, besides=_FOR_BOTH)
        given = read_job(file)
    job_file = on_one_machine(given)
    name = job_file.job["metadata"]["name"]
    spec = job_file.spec
    folder = Folder((directory or RUNS / name).resolve(), claim_of(job_file.job), predicts=spec.predicts)
    beside = Path.cwd() if file == "-" else Path(file).resolve().parent
    code_directory = preflight.code_folder(job_file, code, beside, folder.scratch)
    own_command = () if is_python else command_line
    plan = preflight.check(job_file, code_directory, own_command)
    before = _open(folder, name, resume=resume, fresh=fresh)
    if fresh:  # the ConfigMap's code was unpacked into the folder that was just renamed
        code_directory = preflight.code_folder(job_file, code, beside, folder.scratch)
    here = Here(
        folder=folder,
        code=code_directory,
        ports=Ports(),
        devices=share_out(job_file.spec, plan, visible_gpus(), cpu_build=is_cpu_build()),
        replicas=len(plan.members.pods),
        command=own_command,
    )
    replicas = [f"{role}-{index}" for role, index in plan.members.pods]
    lead = "chief-0" if plan.counts.get(Role.CHIEF) else "worker-0"
    screen = Screen(replicas, lead, everything=verbose or job_file.spec.trainer is None, script=is_python)
    stands_for_code = None if code is None and preflight.code_in(job_file) else code_directory
    if is_python:
        screen.say(f"{Path(file).name} is {kind_of_file(file)}")
    _introduce(screen, job_file, plan, here, preflight.ignored(given, stands_for_code))
    session_job = new_job(job_file.job, before)
    again = _again(file, options.given(besides=_NOT_AGAIN), command_line)
    try:
        return int(asyncio.run(_run(session_job, here, screen, again, ui=ui)))
    finally:
        here.ports.close()


async def _run(job: Object, here: Here, screen: Screen, again: str, *, ui: bool) -> Exit:
    if not ui:
        return await Session(job, here, screen, again).run()
    # Imported here, because the client of a cluster takes a second to import.
    from tfgpujob.ui.server import serving  # noqa: PLC0415
    from tfgpujob.ui.sources import LocalRuns  # noqa: PLC0415

    runs = here.folder.path.parent
    async with serving(LocalRuns(runs), 0) as address:
        screen.say(f"  page: {address}jobs/{quote(runs.name)}/{quote(here.folder.path.name)}")
        return await Session(job, here, screen, again).run()


def _open(folder: Folder, name: str, *, resume: bool, fresh: bool) -> Object | None:
    """The run to continue, or None. Raises CliError if the folder has one and neither flag is set."""
    if resume and not folder.holds_a_run():
        raise CliError(f"{folder.shown()} holds no run to resume", "leave --resume out, or name its folder with --dir")
    if not resume and not fresh and folder.holds_a_run():
        where = folder.shown() if folder.job() is not None else shown(folder.output)
        raise CliError(
            f"{where} holds an earlier run",
            "--resume continues it, --fresh starts from the beginning and keeps it aside",
        )
    folder.open()
    if fresh and folder.holds_a_run():
        click.echo(f"the earlier run is now in {' and '.join(shown(path) for path in folder.set_aside())}")
        folder.open()
    before = folder.job()
    if before is not None and before["metadata"]["name"] != name:
        raise CliError(
            f"{folder.shown()} holds a run of {before['metadata']['name']}", "name another folder with --dir"
        )
    return before


def _introduce(screen: Screen, file: JobFile, plan: Plan, here: Here, ignored: Iterable[str]) -> None:
    roles = ", ".join(f"{count} × {role}" for role, count in plan.counts.items())
    screen.say(f"{file.job['metadata']['name']}: {file.spec.strategy} on this machine, {roles}")
    for line in ignored:
        screen.say(f"  without effect here: {line}")
    if here.devices.note:
        screen.say(f"  {here.devices.note}")
    tasks = [
        f"{role}-{index} {here.ports.local(address)}"
        for (role, index), pod in zip(plan.members.pods, offline.pods(file, plan), strict=True)
        if (address := offline.own_address(pod)) is not None
    ]
    if tasks:
        screen.say(f"  ports: {', '.join(tasks)}")
    logs = ", ".join(f"{role}-{index}.log" for role, index in plan.members.pods)
    if (claim := claim_of(file.job)) is not None:
        screen.say(f"  claim {claim}: the folder {shown(here.folder.output)}, for all jobs that name it")
    screen.say(f"  results in {shown(here.folder.output)}, logs in {here.folder.shown()}/logs: {logs}")
    if file.spec.trainer is not None:
        for module in preflight.hidden_modules(here.code):
            screen.say(f"  {module}.py hides another module {module}: rename it if an import fails", "yellow")


def _job_of_script(
    file: Path,
    workers: int,
    gpus: int,
    requirements: Path | None,
    args: Sequence[str],
    *,
    code: Path | None = None,
) -> JobFile:
    """A job that runs the Python file in its folder, or in `code`. Raises CliError for a module."""
    trainer: dict[str, Any] = {} if requirements is None else {"requirements": options.required(requirements)}
    if args:
        trainer["args"] = list(args)
    return job_of_script(str(file), code=code, workers=workers, gpus=gpus, trainer=trainer)


def _again(file: str, flags: Mapping[str, object], command_line: tuple[str, ...]) -> str:
    words = ["tfgpu", "run", file, "--local", "--resume"]
    words += [str(word) for flag, value in flags.items() for word in (flag, value)]
    return shlex.join([*words, *(("--", *command_line) if command_line else ())])
