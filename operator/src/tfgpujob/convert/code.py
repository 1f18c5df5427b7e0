"""A Python file becomes a job: the file goes into a ConfigMap, and the job runs it with the bundled trainer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tfgpujob import names
from tfgpujob.names import Strategy

CODE_LIMIT: Final = 1_000_000
"""Bytes of code that fit: a ConfigMap holds 1 MiB."""


def code_map(job_name: str, files: Sequence[Path]) -> dict[str, Any]:
    """The immutable ConfigMap `<job>-code-<digest>`, with one key a file.

    Code that changes gets another name, so what runs after a restart is what ran before it. Raises
    ValueError when the files are too large, are no text, or two of them have the same name.
    """
    data: dict[str, str] = {}
    for file in files:
        if file.name in data:
            raise ValueError(f"two files are called {file.name}: rename one, since both go to {names.CODE_DIR}")
        try:
            data[file.name] = file.read_text()
        except UnicodeDecodeError as error:
            raise ValueError(f"{file} is no text: put it into an image, and name that in trainer.code.image") from error
    size = sum(len(text.encode()) for text in data.values())
    if size > CODE_LIMIT:
        fix = "put the code into a volume or an image, and name that in spec.trainer.code"
        raise ValueError(f"the code has {size} bytes, and a ConfigMap holds {CODE_LIMIT}: {fix}")
    digest = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:12]
    metadata = {"name": f"{job_name}-code-{digest}"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "immutable": True, "data": data}


def job_of_file(
    file: Path,
    *,
    name: str,
    workers: int = 1,
    gpus: int = 1,
    strategy: Strategy | None = None,
    trainer: Mapping[str, Any],
    extra_files: Sequence[Path] = (),
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A TFGPUJob that trains `file`, and the ConfigMap with its code. Raises ValueError as `code_map` does.

    `gpus` are those of each worker. `strategy` None: OneDevice, Mirrored for several GPUs, MultiWorkerMirrored for
    several workers. `trainer` has the rest of spec.trainer: globalBatchSize, epochs, params, …
    """
    single = Strategy.MIRRORED if gpus > 1 else Strategy.ONE_DEVICE
    chosen = strategy or (Strategy.MULTI_WORKER_MIRRORED if workers > 1 else single)
    code = code_map(name, [file, *extra_files])
    job = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": name},
        "spec": {
            "strategy": str(chosen),
            "replicaSpecs": {"worker": {"replicas": workers, "gpus": gpus}},
            "trainer": {
                "entrypoint": file.name,
                "code": {"configMap": {"name": code["metadata"]["name"]}},
                **trainer,
            },
        },
    }
    return job, code
