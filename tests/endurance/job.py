"""The processes of a scenario, started as pods would be, and the probes that look at them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.endurance.sampling import Measures, Probe, ProcessTree, folder, shared_memory
from tests.endurance.scenarios import BATCH, KEEP, PREDICT_BATCH, PREDICTED, ROWS, Scenario
from tests.machine import Deadline
from tests.trainer.harness import Launcher, Task, ask, free_ports, launcher

MODULE = Path(__file__).parent / "module"
_EXAMPLES = Path(__file__).parents[2] / "examples"
_ENDLESS = 2**31 - 1
_END_SECONDS = 60
STOPPED = 143
"""The exit code after SIGTERM."""


@dataclass
class Job:
    """A scenario's running tasks, by names such as `worker-0`."""

    scenario: Scenario
    launch: Launcher
    output: Path
    port: int
    began: float = field(default_factory=time.time)
    tasks: dict[str, Task] = field(default_factory=dict)

    def steps(self) -> int:
        """Steps done so far; of mode predict, batches."""
        told = ask(self.port)
        if self.scenario.predicts:
            return int(told.get("rows") or 0) // PREDICT_BATCH
        return int(told.get("step") or 0)

    def ended(self) -> dict[str, int]:
        """The exit codes of the tasks that have ended."""
        codes = {name: task.process.poll() for name, task in self.tasks.items()}
        return {name: code for name, code in codes.items() if code is not None}

    def probes(self) -> list[Probe]:
        """What is sampled of it."""
        return [*(ProcessTree(name, task.process.pid) for name, task in self.tasks.items()), self._files]

    def _files(self) -> dict[str, Measures]:
        found: dict[str, Measures] = {
            "temporary files": folder(self.launch.directory / "tmp"),
            "shared memory": shared_memory(since=self.began),
            "log": {"bytes": sum(task.log_path.stat().st_size for task in self.tasks.values())},
        }
        if self.scenario.predicts:
            return {**found, "predictions": folder(self.output / "predictions")}
        checkpoints = self.output / "checkpoints"
        there = list(checkpoints.iterdir()) if checkpoints.is_dir() else []
        kept = sum(path.name.startswith("step-") for path in there)
        return {
            **found,
            "tensorboard": folder(self.output / "tensorboard"),
            "checkpoints": {"bytes": folder(checkpoints)["bytes"], "kept": kept},
            "output": {"files": folder(self.output)["files"]},
        }

    def finishing(self) -> list[str]:
        """The tasks that end by themselves once all is trained."""
        serving = ("worker", "ps") if self.scenario.strategy == "ParameterServer" else ()
        return [name for name in self.tasks if not name.startswith(serving)]

    def wait(self) -> None:
        """Until they have, or it takes too long."""
        self._wait(self.finishing())

    def stop(self) -> dict[str, int]:
        """Ask all to stop, as suspending a job does: the chief of ParameterServer first. The exit codes."""
        first = [name for name in self.tasks if name.startswith("chief")]
        for names in (first, [name for name in self.tasks if name not in first]):
            for name in names:
                if self.tasks[name].process.poll() is None:
                    self.tasks[name].process.send_signal(signal.SIGTERM)
            self._wait(names)
        return self.ended()

    def _wait(self, names: list[str]) -> None:
        deadline = Deadline(_END_SECONDS)
        while not deadline.passed and any(self.tasks[name].process.poll() is None for name in names):
            time.sleep(0.05)

    def explain(self, lines: int = 15) -> str:
        """The last lines that each task that failed has printed."""
        said = []
        for name, code in self.ended().items():
            if code not in (0, STOPPED):
                said.append(f"{name} ended with exit code {code}; its last lines:")
                said += [f"  {line}" for line in self.tasks[name].log.splitlines()[-lines:]]
        return "\n".join(said)


@contextmanager
def running(
    scenario: Scenario, directory: Path, *, python: str, steps: int | None = None, log_every: int = 1
) -> Iterator[Job]:
    """Its processes; they do not outlive the block. Without `steps` it trains until it is stopped."""
    output, files = directory / "output", directory / "files"
    for path in (files, directory / "tmp"):
        path.mkdir(parents=True)
    with launcher(directory, python) as launch:
        if scenario.kind not in ("arrays", "dataset", "generator"):
            _call([python, str(MODULE / "small.py"), str(files), str(ROWS)])
        config = _config(scenario, output, files, steps=steps, log_every=log_every)
        if scenario.predicts:
            trained = launch.start(
                _config(Scenario(name="trained"), directory / "trained", files, steps=1, log_every=1), env=_common({})
            )
            assert trained.wait(_END_SECONDS) == 0, trained.log
            config["predict"] = {**config["predict"], "model": str(directory / "trained/model.keras")}
        port, leader, *ports = free_ports(2 + scenario.processes)
        job = Job(scenario, launch, output, port)
        addresses = {name: f"127.0.0.1:{one}" for name, one in zip(_names(scenario), ports, strict=True)}
        for name in addresses:
            env = _environment(scenario, name, addresses, directory / "tmp")
            if scenario.in_place:
                env |= _recovery(leader)
            if scenario.elastic:
                env |= {"TFGPU_SHARED_PARTS": "1"} if scenario.predicts else {"TFGPU_WORKERS_MIN": "1"}
            if name == scenario.steps_by:
                env["TFGPU_PROGRESS_PORT"] = str(port)
            if scenario.program:
                env |= {"OUTPUT": str(output), "STEPS": str(steps or _ENDLESS)}
                job.tasks[name] = launch.start_own([python, str(_EXAMPLES / scenario.program)], env=env)
            else:
                job.tasks[name] = launch.start(config, env=_common(env))
        yield job


def _names(scenario: Scenario) -> list[str]:
    return [f"{role}-{index}" for role, count in scenario.replicas.items() for index in range(count)]


def _config(scenario: Scenario, output: Path, files: Path, *, steps: int | None, log_every: int) -> dict[str, Any]:
    saves: dict[str, Any] = {"checkpoint": {"everySteps": scenario.every, "keep": KEEP}}
    common: dict[str, Any] = {
        "entrypoint": scenario.entrypoint,
        "output": {"directory": str(output)},
        "logEverySeconds": log_every,
    }
    if scenario.is_script:
        return {**common, **saves}
    params: dict[str, Any] = {"kind": scenario.kind, "folder": str(files)}
    common |= {"params": params, "globalBatchSize": BATCH}
    if scenario.predicts:
        rows = PREDICTED if steps is None else steps * PREDICT_BATCH
        return {**common, **scenario.config, "params": {**params, "rows": rows}}
    return {
        **common,
        "params": {**params, "rows": ROWS},
        "steps": steps or _ENDLESS,
        **saves,
        "evaluate": {"everySteps": scenario.every},
        **scenario.config,
    }


def _common(env: dict[str, str]) -> dict[str, str]:
    return {"TFGPU_CODE_DIR": str(MODULE), **env}


def _environment(scenario: Scenario, name: str, addresses: dict[str, str], tmp: Path) -> dict[str, str]:
    role, index = name.split("-")
    env = {
        "TMPDIR": str(tmp),
        "TFGPU_STRATEGY": scenario.strategy,
        "TFGPU_REPLICA_TYPE": role,
        "TFGPU_REPLICA_INDEX": index,
    }
    if scenario.devices > 1:
        env["TFGPU_GPUS"] = str(scenario.devices)
    if scenario.strategy == "Custom":
        env["TFGPU_REPLICAS"] = str(scenario.processes)
    cluster: dict[str, Any] = {}
    for other, address in addresses.items():
        cluster.setdefault(other.split("-")[0], []).append(address)
    cluster.pop("evaluator", None)
    if scenario.strategy == "ParameterServer" and role != "chief":
        # As the operator writes it: only the chief knows all tasks.
        own = {role: {index: addresses[name]}}
        cluster = {**own, "ps": cluster["ps"]} if role == "worker" else own
    if scenario.strategy in ("MultiWorkerMirrored", "ParameterServer") and role != "evaluator":
        env["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": role, "index": int(index)}})
    return env


def _recovery(leader: int) -> dict[str, str]:
    """What the operator gives to a job with `recovery: InPlace`."""
    return {
        "TFGPU_RECOVERY": "InPlace",
        "TFGPU_RECOVERY_BUDGET": "0",
        "TFGPU_RECOVERY_LEADER": f"127.0.0.1:{leader}",
        "TFGPU_RECOVERY_TOKEN": "endurance",
        "TFGPU_JOB_UID": "endurance",
    }


def _call(command: list[str]) -> None:
    done = subprocess.run(
        command, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
