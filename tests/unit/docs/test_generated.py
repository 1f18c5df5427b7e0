"""Tables made from the code are up to date, and complete."""

from __future__ import annotations

import pytest
from tests import generated_docs
from tests.pages import ROOT

from tfgpujob.core import attempt
from tfgpujob.names import Condition, Reason


@pytest.mark.parametrize("path", sorted(generated_docs.FILES))
def test_the_page_is_what_the_code_says(path: str) -> None:
    assert (ROOT / path).read_text() == generated_docs.FILES[path](), "run `make crds`"


def test_every_policy_of_the_chain_is_in_the_table() -> None:
    rows = generated_docs.chain().splitlines()[2:]
    assert len(rows) == len(attempt._CHAIN)
    assert not [row for row in rows if row.endswith("|  |")], "a policy without a docstring"


def test_every_condition_and_every_reason_is_decided_by_a_function_that_the_table_names() -> None:
    setters = list(generated_docs.Source(generated_docs.CORE).setters())
    assert {setter.condition for setter in setters} == {condition.name for condition in Condition}
    assert {setter.reason for setter in setters} == {reason.name for reason in Reason}
