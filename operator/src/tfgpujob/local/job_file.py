"""A file of Kubernetes objects, as `kubectl apply -f` takes it, and the TFGPUJobs in it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import yaml

from tfgpujob import names
from tfgpujob.api import Invalid, JobSpec, parse_job
from tfgpujob.api.pod_schema import metadata_against_schema
from tfgpujob.convert.code import job_name, job_without_code
from tfgpujob.core.observed.snapshot import Object
from tfgpujob.exits import CliError, Exit
from tfgpujob.kubectl_yaml import Loader
from tfgpujob.local.yaml_lines import line_of
from tfgpujob_contract.python_file import Kind, kind_of

_MAX_LEVELS: Final = 100
_FIXES: Final = {
    "utf-8": "save it as UTF-8",
    "'\\t'": "indent with spaces",
    "cannot start any token": "put quotes around the value",
    "mapping values are not allowed": "correct the indentation, or put quotes around a value that has a colon",
    "'<scalar>'": "correct the indentation, or put quotes around a value that has a tab",
    "<document start>": "write a line with --- between two objects",
    "constructor for the tag": "remove the tag",
}
"""By a part of the problem, in the words of Python or PyYAML."""
_TEMPLATE: Final = "{{ … }} is a template of Helm or Argo: render it first, such as by helm template"
_WITH_FIX: Final = (_TEMPLATE, ": keep one of them")
_TIMES: Final = 4
"""Maximum growth of a file by its YAML aliases, as a multiple of its text, beyond the first megabyte."""


@dataclass(frozen=True, slots=True)
class JobFile:
    """A job that the operator would accept."""

    job: Object
    """The TFGPUJob as written, with the namespace that `read_jobs` was given."""
    spec: JobSpec
    others: tuple[Object, ...]
    """The other objects of the file: claims, ConfigMaps."""


def read_objects(file: str) -> tuple[Object, ...]:
    """Every object in the file, the items of a List in its place; `-` is standard input. Raises CliError."""
    return _read(file)[1]


def _read(file: str) -> tuple[str, tuple[Object, ...]]:
    """With the file's text."""
    if file.endswith(".py"):
        made = Path(file).with_suffix(".yaml")
        batch = " --batch 128" if kind_of_file(file) is Kind.MODULE else ""
        fix = f"make a job of it: tfgpu submit {file} --workers 2{batch} --dry-run > {made}"
        raise CliError(f"{file} is a Python file", fix)
    if file.endswith(".ipynb"):
        fix = f"make a Python file of it (jupyter nbconvert --to script {file}), or call tfgpujob.client.train() in it"
        raise CliError(f"{file} is a notebook", fix)
    text = ""
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text()
        documents = list(_documents(text, file))
    except OSError as error:
        raise CliError(f"{file}: {error.strerror}", "name a YAML file with a job", Exit.NOT_FOUND) from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        said = _said(error, text)
        known = (fix for part, fix in _FIXES.items() if part in str(error))
        fix = "" if said.endswith(_WITH_FIX) else next(known, "correct it")
        raise CliError(f"{file} is no YAML: {said}", fix) from error
    return text, tuple(obj for document in documents for obj in _flat(document, file))


def _documents(text: str, file: str) -> Iterator[Any]:
    """Raises CliError for a document that would be too large, before it is built."""
    loader = Loader(text)
    try:
        while (node := loader.get_node() if loader.check_node() else None) is not None:
            if problem := _too_large(node, _TIMES * len(text) + (1 << 20)):
                raise CliError(
                    f"{file}:{node.start_mark.line + 1}: the document {problem}", "write it out, and shorter"
                )
            if (document := loader.construct_document(node)) is not None:
                yield document
    except RecursionError:
        raise CliError(f"{file} is nested too deeply", f"write no more than {_MAX_LEVELS} levels") from None
    finally:
        loader.dispose()


def _too_large(node: yaml.Node, room: int) -> str:
    """Why it is too large once each alias is replaced by a copy; empty if it is not."""
    level = [node]
    for _ in range(_MAX_LEVELS):
        lists = [node.value for node in level if isinstance(node, yaml.CollectionNode)]
        room -= sum(len(node.value) for node in level) + len(level)
        if room < 0:
            return "becomes many times as large as it is written by its aliases (&name, *name)"
        if not lists:
            return ""
        level = [node for items in lists for item in items for node in (item if isinstance(item, tuple) else (item,))]
    return f"is nested more than {_MAX_LEVELS} levels deep"


def _said(error: UnicodeDecodeError | yaml.YAMLError, text: str) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
        line = error.problem_mark.line
        since = min(line, (error.context_mark or error.problem_mark).line)
        lines = enumerate(text.splitlines()[since : line + 1], since + 1)
        template = next((number for number, shown in lines if "{{" in shown), None)
        return f"line {template}: {_TEMPLATE}" if template else f"line {line + 1}: {error.problem}"
    if isinstance(error, yaml.reader.ReaderError):
        return f"line {text.count(chr(10), 0, error.position) + 1}: character {error.character:#x} is not allowed"
    return str(error)


def _flat(obj: Any, file: str) -> Iterator[Object]:
    """The object, or the items of a List, as `kubectl get -o yaml` prints it."""
    if not isinstance(obj, dict):
        raise CliError(f"{file} holds {obj!r:.60}", "each document, or item of a List, must be a Kubernetes object")
    if str(obj.get("kind", "")).endswith("List") and isinstance(obj.get("items"), list):
        for item in obj["items"]:
            yield from _flat(item, file)
    else:
        yield obj


def read_jobs(
    file: str, namespace: str | None = "default", *, prepare: Callable[[Object], Object] = lambda job: job
) -> tuple[JobFile, ...]:
    """The TFGPUJobs of the file, at least one, checked as the operator checks them, after `prepare`.

    They get this namespace where they name none; with None they stay without.
    Host access is accepted: only the operator's settings say whether it is allowed. Raises CliError with every problem.
    """
    text, objects = _read(file)
    jobs = [(number, obj) for number, obj in enumerate(objects) if obj.get("kind") == names.KIND]
    if not jobs:
        kinds = ", ".join(str(obj.get("kind") or "an object without a kind") for obj in objects) or "nothing"
        convert = f"convert it first: tfgpu convert {file}" if "TFJob" in kinds else ""
        kind = f"write kind: {names.KIND}" if names.KIND.lower() in kinds.lower() else f"it must hold a {names.KIND}"
        raise CliError(f"{file} holds {kinds}", convert or kind)
    if (unknown := next((obj for obj in objects if not obj.get("kind")), None)) is not None:
        problem = f"{file} holds an object without a kind, with {', '.join(map(str, unknown)):.60}"
        raise CliError(problem, "add its kind and apiVersion, or remove it; YAML anchors end with their document")
    others = tuple(obj for obj in objects if obj.get("kind") != names.KIND)
    found: list[JobFile] = []
    problems: list[str] = []
    for number, job in jobs:
        complete = prepare(with_namespace(job, namespace))
        spec = _spec(complete)
        if isinstance(spec, JobSpec):
            found.append(JobFile(complete, spec, others))
        else:
            which = f" {_name(job)}:" if len(jobs) > 1 else ""
            problems += [f"{file}:{line_of(text, number, problem.field)}:{which} {problem}" for problem in spec]
    if problems:
        raise CliError("\n".join(problems))
    places = Counter((job.job["metadata"].get("namespace"), job.job["metadata"]["name"]) for job in found)
    if twice := next((name for (_, name), count in places.items() if count > 1), ""):
        raise CliError(f"{file} holds several jobs named {twice}", "give each a name of its own")
    return tuple(found)


def read_job(file: str, namespace: str = "default") -> JobFile:
    """The one TFGPUJob of the file. Raises CliError as `read_jobs`, and if there are several."""
    found = read_jobs(file, namespace)
    if len(found) > 1:
        several = ", ".join(job_file.job["metadata"]["name"] for job_file in found)
        raise CliError(f"{file} holds {len(found)} jobs: {several}", "give each a file of its own")
    return found[0]


def kind_of_file(file: str) -> Kind:
    """The kind of a Python file. Raises CliError."""
    try:
        return kind_of(Path(file))
    except OSError as error:
        raise CliError(f"{error.filename}: {error.strerror}", "name a Python file", Exit.NOT_FOUND) from error
    except ValueError as error:
        raise CliError(str(error)) from error


def job_of_script(
    file: str, *, code: Path | None = None, workers: int, gpus: int, trainer: Mapping[str, Any]
) -> JobFile:
    """A job that runs the Python file where it is, or in the folder `code`, which has it at any depth. Raises CliError
    for a module, which needs more fields."""
    if kind_of_file(file) is Kind.MODULE:
        return read_job(file)  # its error says how to create a job from it
    path = Path(file)
    job = job_without_code(path, name=job_name(path), workers=workers, gpus=gpus, trainer=trainer, folder=code)
    return job_file_of(job, file)


def job_file_of(job: Object, file: str) -> JobFile:
    """A job that was created from another kind of file. Raises CliError as `read_jobs`."""
    complete = with_namespace(job, "default")
    spec = _spec(complete)
    if not isinstance(spec, JobSpec):
        raise CliError("\n".join(f"{file}: {problem}" for problem in spec))
    return JobFile(complete, spec, ())


def on_one_machine(file: JobFile) -> JobFile:
    """The same job without spares, because no pod is lost without the others, and without suspendIdleSeconds, because
    a run that is suspended here can't be resumed.
    """
    policy = file.job["spec"].get("runPolicy") or {}
    rest = {key: value for key, value in policy.items() if key not in {"spares", "suspendIdleSeconds"}}
    if rest == policy:
        return file
    job = {**file.job, "spec": {**file.job["spec"], "runPolicy": rest}}
    spec = _spec(job)
    assert isinstance(spec, JobSpec), "both are optional"
    return replace(file, job=job, spec=spec)


def with_namespace(job: Object, namespace: str | None) -> Object:
    """The job in this namespace, unless it names one."""
    metadata = job.get("metadata")
    if namespace is None:
        return job
    return {**job, "metadata": {"namespace": namespace, **metadata}} if isinstance(metadata, dict) else job


def _spec(job: Object) -> JobSpec | tuple[Invalid, ...]:
    """The spec, or what is wrong with the job."""
    if job.get("apiVersion") != names.API_VERSION:
        said = f"is {job['apiVersion']!r}" if job.get("apiVersion") else "is missing"
        return (Invalid("apiVersion", said, f"write {names.API_VERSION}"),)
    metadata = tuple(metadata_against_schema(job.get("metadata")))
    spec = parse_job(job, allow_host=True)
    if not metadata:
        return spec
    others = () if isinstance(spec, JobSpec) else spec
    return (*metadata, *(problem for problem in others if not problem.field.startswith("metadata")))


def _name(job: Object) -> str:
    metadata = job.get("metadata")
    return str((metadata if isinstance(metadata, dict) else {}).get("name", "a job without a name"))
