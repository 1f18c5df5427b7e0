"""The table of strategies is complete, consistent, and the only code that distinguishes strategies."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tfgpujob
from tfgpujob.api.strategies import TRAITS, Cluster, Work, having, listed
from tfgpujob.names import Role
from tfgpujob_contract.strategies import Strategy

PACKAGE = Path(tfgpujob.__file__).parent
CHOOSE_ONE = {"convert/job.py", "convert/roles.py", "convert/code.py", "cli/verbs/convert.py", "cli/behaviour.py"}
"""They choose or recommend a strategy for users, and so must name it."""


def test_every_strategy_has_a_row() -> None:
    assert set(TRAITS) == set(Strategy)


@pytest.mark.parametrize("strategy", Strategy)
def test_a_row_agrees_with_itself(strategy: Strategy) -> None:
    traits = TRAITS[strategy]
    assert not traits.needs & traits.refuses
    assert not (traits.adds_chief and Role.CHIEF in traits.refuses)
    assert not traits.one_worker or (traits.cluster is Cluster.NONE and Role.CHIEF in traits.refuses)
    assert set(traits.waits_for) <= set(Role) - traits.refuses
    assert traits.cluster is not Cluster.NONE or not traits.waits_for, "nobody waits for a name that nobody tells it"
    assert traits.work is Work.SYNCHRONOUS or not traits.ends_together


def test_no_other_file_of_the_operator_names_a_strategy() -> None:
    files = {str(path.relative_to(PACKAGE)): path.read_text() for path in PACKAGE.rglob("*.py")}
    named = {name for name, text in files.items() if re.search(r"\bStrategy\.[A-Z]", text)}
    assert named - CHOOSE_ONE == {"api/strategies.py"}
    assert named >= CHOOSE_ONE, "this list is longer than it must be"


def test_the_order_is_that_of_the_names() -> None:
    assert having(lambda traits: traits.cluster is Cluster.NONE) == (Strategy.ONE_DEVICE, Strategy.MIRRORED)


@pytest.mark.parametrize(("count", "text"), [(1, "OneDevice"), (3, "OneDevice, Mirrored or MultiWorkerMirrored")])
def test_listed(count: int, text: str) -> None:
    assert listed(tuple(Strategy)[:count], "or") == text
