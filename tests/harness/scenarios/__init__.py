"""The stories. Every write of each of them is a crash point; every watch event a way to be misled."""

from __future__ import annotations

from tests.harness.scenarios.claims import CLAIMS
from tests.harness.scenarios.gangs import GANGS
from tests.harness.scenarios.isolation import ISOLATION
from tests.harness.scenarios.losses import LOSSES, REPLICAS
from tests.harness.scenarios.lost_pods import LOST_PODS
from tests.harness.scenarios.nodes import NODES
from tests.harness.scenarios.operators import OPERATORS
from tests.harness.scenarios.people import PEOPLE
from tests.harness.scenarios.progress import PROGRESS
from tests.harness.scenarios.queues import QUEUES
from tests.harness.scenarios.refusals import REFUSALS
from tests.harness.scenarios.resizes import RESIZES
from tests.harness.scenarios.sizes import SIZES
from tests.harness.scenarios.spares import SPARES
from tests.harness.scenarios.strategies import ENDINGS, STRATEGIES

SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        *STRATEGIES,
        *ENDINGS,
        *LOSSES,
        *REPLICAS,
        *LOST_PODS,
        *NODES,
        *REFUSALS,
        *PEOPLE,
        *OPERATORS,
        *PROGRESS,
        *ISOLATION,
        *GANGS,
        *CLAIMS,
        *RESIZES,
        *SPARES,
        *QUEUES,
        *SIZES,
    )
}
