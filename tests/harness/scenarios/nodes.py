"""Nodes that are lost."""

from __future__ import annotations

from tests.harness.scenario import Scenario, Step, lose_node, no_pods, nothing, shows, suspend, then, training
from tests.harness.scenarios.common import FOREVER, MWM, SECOND_CHIEF, SECOND_TIME, SERVERS, SUCCEEDED, submit

TWO_NODES = ("node-1", "node-2")
NODES = (
    Scenario(
        name="node-lost",
        script=(
            submit(MWM),
            Step(training("train"), nothing),
            Step(shows("train", "Running", "True"), lose_node("node-2")),
        ),
        ends=SECOND_TIME,
        nodes=TWO_NODES,
        phases=SUCCEEDED,
    ),
    Scenario(
        name="node-lost-under-servers",
        script=(
            submit(SERVERS),
            Step(training("train"), nothing),
            Step(shows("train", "Running", "True"), lose_node("node-2")),
        ),
        ends=SECOND_CHIEF,
        nodes=TWO_NODES,
        phases=SUCCEEDED,
    ),
    Scenario(
        name="node-lost-while-deleting",
        script=(
            submit(MWM),
            Step(training("train"), nothing),
            Step(shows("train", "Running", "True"), then(lose_node("node-2"), suspend("train", True))),
            Step(no_pods("train"), nothing),
        ),
        ends=FOREVER,
        nodes=TWO_NODES,
        phases={"train": "Suspended"},
    ),
)
