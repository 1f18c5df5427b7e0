"""Checks before a local run: problems that prevent it, and fields that need a cluster."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from tfgpujob import names
from tfgpujob.api import JobSpec
from tfgpujob.api.rules.host import host_access
from tfgpujob.api.translate import closest
from tfgpujob.convert.code import files_of
from tfgpujob.core.advice import advice
from tfgpujob.core.observed.ownership import other_manager
from tfgpujob.core.observed.plan import Plan, replica_specs, resolve
from tfgpujob.core.observed.snapshot import Object
from tfgpujob.exits import CliError
from tfgpujob.local.job_file import JobFile
from tfgpujob.local.offline import CONFIG
from tfgpujob_contract.python_file import OWN_LOOPS, FileError, kind_of

INSTALL: Final = "pip install 'tfgpujob[local]', or 'tfgpujob[local-gpu]' for NVIDIA GPUs"
_ONLY_IN_A_CLUSTER: Final = ("scheduling_policy", "spares", "suspend_idle_seconds", "ttl_seconds_after_finished")
_IMPORTED_BY_ALL: Final = {"keras", "numpy", "tensorflow"}
_CONTAINER_FIELDS: Final = {"name", "image", "env", "command", "args"}


def check(file: JobFile, code: Path, command: Sequence[str]) -> Plan:
    """The plan of the first attempt. Raises CliError for a job that can't run here. Does not import TensorFlow."""
    spec = file.spec
    if spec.run_policy.suspend:
        raise CliError("spec.runPolicy.suspend: is true, so nothing would run", "remove it")
    field, manager = other_manager(file.job)
    if manager:
        raise CliError(f"{field}: {manager} is another controller", "remove it")
    if spec.trainer is None:
        _check_command(spec, command)
    elif command:
        raise CliError("spec.trainer and a command after -- are given together", "keep one of them")
    else:
        refuse_shared_loop(spec, code)
        _check_trainer(spec.trainer.entrypoint, code)
    return resolve(spec, CONFIG)


def _check_trainer(entrypoint: str, code: Path) -> None:
    if find_spec("tfgpujob_trainer") is None or find_spec("tensorflow") is None:
        raise CliError("a local run needs the trainer and TensorFlow, which are not installed here", INSTALL)
    is_file = "/" in entrypoint or entrypoint.endswith(".py")
    if is_file and not (code / entrypoint).is_file():
        raise CliError(
            f"spec.trainer.entrypoint: there is no file {code / entrypoint}",
            "name its folder with --code, or correct it",
        )
    if is_file:
        _check_syntax(code / entrypoint)
    elif not _is_importable(entrypoint.partition(".")[0], code):
        raise CliError(
            f"spec.trainer.entrypoint: {entrypoint} is neither built-in nor a module in {code}",
            f"write {entrypoint}.py for a file, or name one of {', '.join(_builtin())}",
        )


def refuse_shared_loop(spec: JobSpec, code: Path) -> None:
    """Raises CliError for several processes on a GPU with a training loop of its own, as the trainer does in a pod."""
    path = code / spec.trainer.entrypoint if spec.trainer else code
    if (spec.gpu.processes_per_gpu or 1) == 1 or not path.is_file():
        return
    with suppress(FileError):  # a file of no kind is refused for that
        if kind_of(path) in OWN_LOOPS:
            problem = f"{path.name} has a training loop of its own: one process of it runs on a GPU"
            fix = "remove it, and ask for more workers where the device plugin shares each GPU"
            raise CliError(f"spec.gpu.processesPerGpu: {problem}", fix)


def _check_syntax(file: Path) -> None:
    """Python would read the file only after importing TensorFlow, which takes seconds."""
    try:
        ast.parse(file.read_bytes(), str(file))
    except (SyntaxError, ValueError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise CliError(f"{file}{line}: {getattr(error, 'msg', error)}", "correct it") from error


def hidden_modules(code: Path) -> list[str]:
    """Modules of Python and of every training that a file of the code hides."""
    return sorted({file.stem for file in code.glob("*.py")} & (sys.stdlib_module_names | _IMPORTED_BY_ALL))


def _is_importable(module: str, code: Path) -> bool:
    there = (code / module).is_dir() or (code / f"{module}.py").is_file()
    return there or module in _builtin() or find_spec(module) is not None


def warnings(spec: JobSpec) -> Iterator[str]:
    """The operator's warnings, and those that need its settings: where host access is allowed, which modules the
    trainer's image has.
    """
    yield from advice(spec)
    for role, replica in replica_specs(spec).items():
        for refused in host_access(replica.template or {}, f"spec.replicaSpecs.{role}.template"):
            yield f"{refused.field} {refused.problem}: refused unless an administrator allows host access there."
    unknown = unknown_entrypoint(spec)
    if unknown is not None:
        yield unknown


def unknown_entrypoint(spec: JobSpec) -> str | None:
    """What is wrong with an entrypoint that is neither in the code nor in an image of the user's; None if nothing
    is.
    """
    trainer, builtin = spec.trainer, _builtin()
    if trainer is None or trainer.entrypoint in builtin or not builtin:
        return None
    # A template may set an image, and volumes.
    if trainer.code or spec.image or any(replica.template for replica in replica_specs(spec).values()):
        return None
    meant = closest(trainer.entrypoint, builtin)
    fix = f"did you mean {meant}?" if meant else f"add spec.trainer.code, or name one of {', '.join(builtin)}"
    return f"spec.trainer.entrypoint: {trainer.entrypoint} is not in the trainer's image; {fix}"


def _builtin() -> list[str]:
    """Found as files: importing the trainer's package takes time."""
    package = importlib.util.find_spec("tfgpujob_trainer")
    places = package.submodule_search_locations if package and package.submodule_search_locations else ()
    files = (file for place in places for file in (Path(place) / "builtin").glob("[a-z]*.py"))
    return sorted(file.stem for file in files)


def _check_command(spec: JobSpec, command: Sequence[str]) -> None:
    for role, replica in replica_specs(spec).items():
        if not command and not _container(replica.template).get("command"):
            raise CliError(
                f"spec.replicaSpecs.{role} runs its image's own command, which is not known here",
                "add the command after --, such as: tfgpu run JOB.YAML --local -- python train.py",
            )


def code_folder(file: JobFile, given: Path | None, beside: Path, scratch: Path) -> Path:
    """The folder for /code: `given` by --code, else the ConfigMap if it is in the file too, else `beside` the file."""
    if given is not None:
        return given
    config_map = code_in(file)
    if config_map is None:
        return beside
    folder = scratch / "code"
    folder.mkdir(parents=True, exist_ok=True)
    for path, content in files_of(config_map, _paths(file)):
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    return folder


def _paths(file: JobFile) -> Mapping[str, str] | None:
    code = file.spec.trainer.code if file.spec.trainer else None
    return code.config_map.paths if code and code.config_map else None


def code_in(file: JobFile) -> Object | None:
    """The ConfigMap with the job's code, if it is in the file too."""
    code = file.spec.trainer.code if file.spec.trainer else None
    wanted = ("ConfigMap", code.config_map.name if code and code.config_map else None)
    return next((obj for obj in file.others if _kind_and_name(obj) == wanted), None)


def ignored(file: JobFile, code: Path | None) -> Iterator[str]:
    """A line for each field that has no effect without a cluster, and what happens instead.

    `code`: the folder for /code; None if it is created from the file's ConfigMap.
    """
    spec = file.spec
    images = any(_container(replica.template).get("image") for replica in replica_specs(spec).values())
    if spec.image or images:
        yield "image (this Python runs)"
    if spec.trainer and spec.trainer.code and code:
        yield f"spec.trainer.code (the files in {code} are used)"
    if spec.trainer and spec.trainer.models:
        yield "spec.trainer.models (the folder models beside the code is used)"
    for role, replica in replica_specs(spec).items():
        fields = sorted(_template_fields(replica.template))
        if fields:
            yield f"spec.replicaSpecs.{role}.template: {', '.join(fields)}"
    for field in _ONLY_IN_A_CLUSTER:
        if getattr(spec.run_policy, field) is not None:
            yield f"spec.runPolicy.{type(spec.run_policy).model_fields[field].alias}"
    used = {("PersistentVolumeClaim", spec.trainer.output.claim if spec.trainer else None)}
    if code is None and (config_map := code_in(file)):
        used.add(_kind_and_name(config_map))
    found = [_kind_and_name(obj) for obj in file.others]
    others = [f"{kind} {name}" for kind, name in found if (kind, name) not in used]
    if others:
        yield f"other objects in the file: {', '.join(others)}"


def _kind_and_name(obj: Object) -> tuple[Any, Any]:
    return obj.get("kind"), (obj.get("metadata") or {}).get("name")


def _container(template: Mapping[str, Any] | None) -> Mapping[str, Any]:
    for container in ((template or {}).get("spec") or {}).get("containers") or ():
        if container.get("name") == names.CONTAINER:
            found: Mapping[str, Any] = container
            return found
    return {}


def _template_fields(template: Mapping[str, Any] | None) -> Iterator[str]:
    spec = (template or {}).get("spec") or {}
    yield from (field for field in spec if field not in {"containers", "terminationGracePeriodSeconds"})
    for container in spec.get("containers") or ():
        if container.get("name") != names.CONTAINER:
            yield f"container {container.get('name')}"
            continue
        yield from (field for field in container if field not in _CONTAINER_FIELDS)
        for variable in container.get("env") or ():
            if "value" not in variable:
                yield f"env {variable.get('name')} (your shell's value is taken)"
