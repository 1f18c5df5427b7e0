"""`make demo` from the moment the operator is there, and every command that it says can be typed next."""

from __future__ import annotations

import shlex

import pytest
from localcluster.demo import CLAIM, JOB, Demo, next_commands
from tests.integration.target import Target
from tests.integration.tool import Tool
from tests.pages import ROOT


def test_the_demo_and_what_it_says_can_be_typed_next(target: Target, tool: Tool) -> None:
    """In a namespace of its own; the last command ends the cluster, which is tests/unit/localcluster's."""
    workspace = tool.workspace
    if not workspace.kube.has_gpus():
        pytest.skip("no node of this cluster has a GPU, and none that pretends")
    demo = Demo(target.cluster, workspace.namespace)
    demo.start_cluster()
    # The second time finds what the first one left.
    for _ in range(2):
        demo.apply()
    assert demo.train() == "Succeeded"
    rows = dict(demo.result())
    assert float(rows["test accuracy"]) >= 0.95
    assert CLAIM["metadata"]["name"] in rows["model"]

    (tool.folder / "examples").symlink_to(ROOT / "examples")
    (export, _), *commands, (removal, _) = next_commands(target.cluster)
    assert export == f"export KUBECONFIG={target.kubeconfig}"
    assert removal == target.cluster.removal
    printed = {}
    for command, _ in commands:
        program, *words = shlex.split(command)
        # `make venv` has made it in the checkout; here it is that of the tests.
        assert program == ".venv/bin/tfgpu"
        printed[words[0], words[1]] = tool.type("tfgpu", *words)
    assert f"{JOB}: Succeeded, 2/2" in printed["describe", JOB]
    assert "epoch 20/20" in printed["logs", JOB]
    followed = printed["logs", "digits-checkpointed"]
    assert "epoch 1/20" in followed, "it has trained, and not taken up what another job had done"
    assert "epoch 20/20" in followed
