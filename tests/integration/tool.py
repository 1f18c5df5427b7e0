"""`tfgpu` as people start it, in a namespace of the cluster."""

from __future__ import annotations

import subprocess
from pathlib import Path

import yaml
from tests.integration.workspace import Workspace
from tests.machine import PATIENCE
from tests.pages import shell

from tfgpujob.exits import Exit


class Tool:
    """`tfgpu` processes that work in one namespace."""

    def __init__(self, workspace: Workspace, folder: Path) -> None:
        self.workspace = workspace
        self.folder = folder
        config = yaml.safe_load(workspace.kube.kubeconfig.read_text())
        for named in config["contexts"]:
            named["context"]["namespace"] = workspace.namespace
        (folder / "kubeconfig").write_text(yaml.safe_dump(config))
        self._environment = shell(folder, KUBECONFIG=str(folder / "kubeconfig"), NO_COLOR="1")

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            words,
            env=self._environment,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def type(self, *words: str, code: Exit = Exit.OK, seconds: float = PATIENCE) -> str:
        """What the command prints; on standard error where it is to fail."""
        process = self.start(*words)
        out, err = process.communicate(timeout=seconds)
        assert process.returncode == code, f"{' '.join(words)}: {out}{err}"
        return err if code else out

    def run(self, *arguments: str, code: Exit = Exit.OK) -> str:
        return self.type("tfgpu", *arguments, code=code)

    def submit(self, name: str, program: str, *, replicas: int = 2) -> None:
        job = self.workspace.new_job(name, program, roles={"worker": {"replicas": replicas}})
        file = self.folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump({"apiVersion": "tfgpu.dev/v1alpha1", "kind": "TFGPUJob", **job}))
        self.run("submit", file.name)
