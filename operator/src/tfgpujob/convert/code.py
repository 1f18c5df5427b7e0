"""A Python file becomes a job: the file goes into a ConfigMap, and the bundled trainer runs it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tfgpujob import names
from tfgpujob.api import Recovery
from tfgpujob_contract.pod import CODE_DIR
from tfgpujob_contract.python_file import Kind, kind_of
from tfgpujob_contract.strategies import Strategy

CODE_LIMIT: Final = 1_000_000
"""Bytes of code that fit: a ConfigMap holds 1 MiB."""
_KEY: Final = re.compile(r"[-\w.]{1,253}", re.ASCII)


_LEFT_OUT: Final = ("__pycache__",)
_LOCAL_RUNS: Final = "runs/"
_NOT_IN_A_NAME: Final = re.compile(r"[^a-z0-9]+")
_BETWEEN: Final = ".."
"""Used in a key for a slash, which keys can't have."""


def code_map(job_name: str, files: Sequence[Path], *, folder: Path | None = None) -> dict[str, Any]:
    """The immutable ConfigMap `<job>-code-<digest>`, with one key for each file; a folder adds all its files, and
    `folder` those that /code itself will have.

    Changed code gets another name, so a restarted job runs the code that it ran before. Raises ValueError when the
    files are too large, two of them have the same name, or a link in a folder leads out of it.
    """
    files_of_key = dict[str, Path]()
    size = 0
    whole = () if folder is None else _inside(folder, folder.resolve())
    for path, file in (*_listed(files), *(one for one in whole if not one[0].startswith(_LOCAL_RUNS))):
        key = path.replace("/", _BETWEEN)
        if key in files_of_key:
            raise ValueError(f"two files are called {path}: rename one, since both go to {CODE_DIR}")
        if _BETWEEN in path or not _KEY.fullmatch(key):
            raise ValueError(f"{file} has a name that no ConfigMap takes: use letters, digits, -, _ and single dots")
        files_of_key[key] = file
        size += file.stat().st_size
        if size > CODE_LIMIT:  # before reading: the folder may have data in it
            fix = "put the code into a volume or an image, and name that in spec.trainer.code"
            raise ValueError(f"the code has {size} bytes with {file}, and a ConfigMap holds {CODE_LIMIT}: {fix}")
    found = {key: file.read_bytes() for key, file in files_of_key.items()}
    data, binary = dict[str, str](), dict[str, str]()
    for key, content in found.items():
        try:
            data[key] = content.decode()
        except UnicodeDecodeError:
            binary[key] = base64.b64encode(content).decode()
    held = {"data": data, **({"binaryData": binary} if binary else {})}
    digest = hashlib.sha256(json.dumps([data, binary] if binary else data, sort_keys=True).encode()).hexdigest()[:12]
    metadata = {"name": f"{job_name}-code-{digest}"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "immutable": True, **held}


def paths_of(code: Mapping[str, Any]) -> dict[str, str] | None:
    """spec.trainer.code.configMap.paths for a ConfigMap of `code_map`; None where no file is in a folder."""
    paths = {key: key.replace(_BETWEEN, "/") for key in (*code["data"], *code.get("binaryData", ()))}
    return paths if any(key != path for key, path in paths.items()) else None


def files_of(code: Mapping[str, Any], paths: Mapping[str, str] | None) -> Iterator[tuple[str, bytes]]:
    """The files that a pod sees: each with its path below /code."""
    contents = {key: str(text).encode() for key, text in (code.get("data") or {}).items()}
    contents |= {key: base64.b64decode(text) for key, text in (code.get("binaryData") or {}).items()}
    for key, content in contents.items():
        if paths is None or key in paths:
            yield (Path(key).name if paths is None else paths[key]), content


def wheel_lines(files: Sequence[Path]) -> list[str]:
    """Lines of spec.trainer.requirements for the wheels among the files."""
    wheels = [file.name.split("-") for file in files if file.suffix == ".whl"]
    return [*(["--find-links ."] if wheels else []), *(f"{name}=={version}" for name, version, *_ in wheels)]


def _listed(files: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """Every file with its path below /code."""
    for file in files:
        if file.is_dir():
            yield from _inside(file, file.resolve().parent)
        else:
            yield file.name, file


def _inside(folder: Path, base: Path) -> Iterator[tuple[str, Path]]:
    """The files of the folder with their paths below `base`, without hidden ones and those that Python generates."""
    top = folder.resolve()
    for file in sorted(top.rglob("*")):
        parts = file.relative_to(top).parts
        if file.is_file() and not any(part.startswith(".") or part in _LEFT_OUT for part in parts):
            if not (real := file.resolve()).is_relative_to(top):
                fix = "put the file itself there, or name it by itself"
                raise ValueError(f"{file} is a link to {real}, which is not in {folder}: {fix}")
            yield file.relative_to(base).as_posix(), file


def job_name(file: Path) -> str:
    """A valid metadata.name for the job of a Python file: `my_train.py` is `my-train`, `01_train.py` `job-01-train`."""
    words = _NOT_IN_A_NAME.sub("-", file.stem.lower()).strip("-")
    name = words if words[:1].isalpha() else f"job-{words}"
    return name[: names.MAX_NAME_LENGTH].rstrip("-")


def job_without_code(
    file: Path,
    *,
    name: str,
    workers: int,
    gpus: int,
    strategy: Strategy | None = None,
    trainer: Mapping[str, Any],
    folder: Path | None = None,
) -> dict[str, Any]:
    """A TFGPUJob that trains `file`, which is available where the job runs. The arguments are those of
    `job_of_file`.
    """
    single = Strategy.MIRRORED if gpus > 1 else Strategy.ONE_DEVICE
    served = kind_of(file) in {Kind.COORDINATOR, Kind.SERVED_SCRIPT}
    several = Strategy.MULTI_WORKER_MIRRORED if workers > 1 else single
    chosen = strategy or (Strategy.PARAMETER_SERVER if served else several)
    servers = {"chief": {}, "ps": {"replicas": 1}} if chosen is Strategy.PARAMETER_SERVER else {}
    gang = {"runPolicy": {"recovery": str(Recovery.IN_PLACE)}} if chosen is Strategy.MULTI_WORKER_MIRRORED else {}
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": name},
        "spec": {
            "strategy": str(chosen),
            **gang,
            "replicaSpecs": {**servers, "worker": {"replicas": workers, "gpus": gpus}},
            "trainer": {"entrypoint": _entrypoint(file, folder), **trainer},
        },
    }


def _entrypoint(file: Path, folder: Path | None) -> str:
    """Its path below /code."""
    real, top = file.resolve(), folder and folder.resolve()
    return real.relative_to(top).as_posix() if top and real.is_relative_to(top) else file.name


def job_of_file(
    file: Path,
    *,
    name: str,
    workers: int = 1,
    gpus: int = 1,
    strategy: Strategy | None = None,
    trainer: Mapping[str, Any],
    extra_files: Sequence[Path] = (),
    folder: Path | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A TFGPUJob that trains `file`, and the ConfigMap with its code, folders included: `file` and the extra files, and
    all of `folder`, which has `file` at any depth. Raises ValueError as `code_map` does.

    `gpus` are those of each worker. `strategy` None: OneDevice, Mirrored for several GPUs, MultiWorkerMirrored for
    several workers, ParameterServer with one ps for a file that has a ClusterCoordinator or a ParameterServerStrategy.

    `trainer` has the rest of spec.trainer: globalBatchSize, epochs, params, …
    """
    if folder is not None and not file.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{file} is not in {folder}: name a folder that has it")
    code = code_map(name, [*([] if folder else [file]), *extra_files], folder=folder)
    source = {"name": code["metadata"]["name"]}
    paths = paths_of(code)
    mounted = {"configMap": source if paths is None else {**source, "paths": paths}}
    trained = {"code": mounted, **trainer}
    job = job_without_code(
        file, name=name, workers=workers, gpus=gpus, strategy=strategy, trainer=trained, folder=folder
    )
    return job, code
