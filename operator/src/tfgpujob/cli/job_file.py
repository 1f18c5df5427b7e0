"""A file of Kubernetes objects, as `kubectl apply -f` takes it, and the one TFGPUJob in it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tfgpujob import names
from tfgpujob.api import JobSpec, parse_job
from tfgpujob.cli.exits import CliError, Exit
from tfgpujob.core.snapshot import Object


@dataclass(frozen=True, slots=True)
class JobFile:
    """A job that the operator would accept."""

    job: Object
    """The TFGPUJob as written, with metadata.namespace."""
    spec: JobSpec
    others: tuple[Object, ...]
    """The other objects of the file: claims, ConfigMaps."""


def read_objects(file: str) -> tuple[Object, ...]:
    """Every object in the file; `-` is standard input. Raises CliError for what is no YAML mapping."""
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text()
        documents = [document for document in yaml.safe_load_all(text) if document is not None]
    except OSError as error:
        raise CliError(f"{file}: {error.strerror}", "name a file with a TFGPUJob", Exit.NOT_FOUND) from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise CliError(f"{file} is no YAML: {' '.join(str(error).split())}", "correct it") from error
    for document in documents:
        if not isinstance(document, dict):
            raise CliError(f"{file} holds {document!r:.60}", "each document must be a Kubernetes object")
    return tuple(documents)


def read_job(file: str, namespace: str = "default") -> JobFile:
    """The one TFGPUJob of the file, checked as the operator checks it. Raises CliError with every problem.

    Host access passes: whether it is allowed, the operator's settings say.
    """
    objects = read_objects(file)
    jobs = [obj for obj in objects if obj.get("kind") == names.KIND]
    if len(jobs) != 1:
        found = ", ".join(str(obj.get("kind")) for obj in objects) or "nothing"
        convert = f"convert it first: tfgpu convert {file}" if "TFJob" in found else ""
        raise CliError(f"{file} holds {found}", convert or f"it must hold exactly one {names.KIND}")
    job: dict[str, Any] = dict(jobs[0])
    if job.get("apiVersion") != names.API_VERSION:
        raise CliError(f"{file}: apiVersion is {job.get('apiVersion')!r}", f"write {names.API_VERSION}")
    metadata = job.get("metadata")
    if isinstance(metadata, dict):
        job["metadata"] = {"namespace": namespace, **metadata}
    spec = parse_job(job, allow_host=True)
    if not isinstance(spec, JobSpec):
        raise CliError("\n".join(f"{file}: {invalid}" for invalid in spec))
    return JobFile(job, spec, tuple(obj for obj in objects if obj is not jobs[0]))
