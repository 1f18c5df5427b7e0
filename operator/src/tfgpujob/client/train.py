"""Functions that a program or a notebook holds, trained as a job: in the cluster, or on this machine."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from tfgpujob.client.errors import LocalRunError
from tfgpujob.client.job import Job, check
from tfgpujob.client.synchronous import Client
from tfgpujob.convert.code import job_of_file
from tfgpujob.convert.functions import Code, module_of, script_of
from tfgpujob.kubectl_yaml import Dumper
from tfgpujob_contract.python_file import is_script

_RUNS: Final = "runs"
_FILE: Final = "{name}.py"
_OURS: Final = "# Written by tfgpujob.client.train, again for each run.\n"


def train(
    script: Callable[[], Any] | None = None,
    *,
    model: Callable[..., Any] | None = None,
    data: Callable[..., Any] | None = None,
    callbacks: Callable[..., Any] | None = None,
    workers: int = 1,
    gpus: int = 1,
    batch: int | None = None,
    epochs: int = 1,
    params: Mapping[str, Any] | None = None,
    trainer: Mapping[str, Any] | None = None,
    requirements: Sequence[str] = (),
    name: str | None = None,
    local: bool = False,
    resume: bool = False,
    directory: str | Path | None = None,
    client: Client | None = None,
) -> Path | Job:
    """Train `model()` on `data(split)`, or run `script()`, which calls fit() itself, on `workers` workers.

    The source of the functions and of what they use is sent: see docs/client.md. `batch`, `epochs` and `params` apply
    to model() and data(); `trainer` holds other fields of spec.trainer. With `local` the job runs here, its log is
    printed, and the folder of its results is returned, `directory` or else runs/NAME; `resume` continues the run in it.
    The job itself is written beside the folder, as NAME.yaml, for `tfgpu submit`. Without `local` the job is created in
    the cluster, by `client` or a new client, and is returned as it was created.

    Raises ValueError for functions whose source can't be written to a file, and for an existing file of that name that
    train() has not written, InvalidJobError for a job that the operator would refuse, LocalRunError for a local run
    that did not succeed.
    """
    if local and client is not None:
        raise ValueError("local=True and client are given: keep one of them")
    code, own = _code_and_length(script, {"model": model, "data": data, "callbacks": callbacks}, batch, epochs, params)
    name = name or (script or model or train).__name__.strip("_").replace("_", "-").lower()
    fields = {**own, **({"requirements": list(requirements)} if requirements else {}), **(trainer or {})}
    with tempfile.TemporaryDirectory(prefix="tfgpu-train-") as scratch:
        file = Path(scratch, _FILE.format(name=name.replace("-", "_")))
        file.write_text(code.text)
        for module in code.modules:
            if module.name != file.name:  # which job_of_file() refuses
                Path(scratch, module.name).symlink_to(module.resolve())
        if script is not None and not is_script(file):
            raise ValueError("functions called model and data make a module of a script: rename one of them")
        job, config_map = job_of_file(
            file, name=name, workers=workers, gpus=gpus, trainer=fields, extra_files=code.modules
        )
        check(job)
        if local:
            return _run(job, config_map, directory, resume=resume)
        if client is not None:
            return client.submit(job, [config_map])
        with Client() as own_client:
            return own_client.submit(job, [config_map])


def _code_and_length(
    script: Callable[[], Any] | None,
    functions: Mapping[str, Callable[..., Any] | None],
    batch: int | None,
    epochs: int,
    params: Mapping[str, Any] | None,
) -> tuple[Code, dict[str, Any]]:
    """The code, and what of spec.trainer says how long and with what batches it trains."""
    given = {name: function for name, function in functions.items() if function is not None}
    if script is not None:
        said = [*given, *(name for name, value in {"batch": batch, "params": params}.items() if value is not None)]
        if said:
            raise ValueError(f"{said[0]} is given beside a function that calls fit(): remove it, fit() says it")
        return script_of(script), {}
    missing = [name for name in ("model", "data") if name not in given]
    if missing:
        raise ValueError(f"{missing[0]} is missing: give model= and data=, or a function that calls fit()")
    if batch is None:
        raise ValueError("the global batch size is not given: add batch=128, say")
    return module_of(given), {
        "globalBatchSize": batch,
        "epochs": epochs,
        **({"params": dict(params)} if params else {}),
    }


def _run(job: Mapping[str, Any], config_map: Mapping[str, Any], directory: str | Path | None, *, resume: bool) -> Path:
    """Run the job with the command line and print its output. Returns the folder of its results."""
    name = job["metadata"]["name"]
    folder = Path(directory or Path(_RUNS, name)).resolve()
    file = folder.with_name(f"{folder.name}.yaml")
    # Outside the folder, which a fresh run moves away.
    if file.exists() and not file.read_bytes().startswith(_OURS.encode()):
        fix = "choose another directory, or rename the file"
        raise ValueError(f"{file} is there and was not written by train(), which would write the job there: {fix}")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(_OURS + yaml.dump_all([config_map, job], Dumper=Dumper, sort_keys=False))
    words = [sys.executable, "-m", "tfgpujob.cli", "run", str(file), "--local", "--dir", str(folder)]
    # In a session of its own: a notebook's interrupt reaches its whole process group, and a second one would kill the
    # run.
    with subprocess.Popen(
        [*words, "--resume" if resume else "--fresh"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as run:
        said = _printed(run)
    if run.returncode:
        raise LocalRunError(run.returncode, said)
    return folder


def _printed(run: subprocess.Popen[str]) -> str:
    """Print its lines until it ends, also after an interrupt, which lets it save. Returns the last line."""
    last = ""
    assert run.stdout is not None
    while run.poll() is None:
        try:
            for line in run.stdout:
                print(line, end="", flush=True)
                last = line.strip() or last
            run.wait()
        except KeyboardInterrupt:
            run.send_signal(signal.SIGINT)
    return last
