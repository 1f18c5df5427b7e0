"""What Kubernetes makes of `$(NAME)`."""

from __future__ import annotations

import pytest

from tfgpujob.core.pods.expansion import MAX_CHARACTERS, environment, expanded


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("a/$(A)$(B.b-c)", "a/1two"),
        ("$$(A) $$ $A $(", "$(A) $ $A $("),
        ("$$$(A)", "$1"),
        ("$(UNKNOWN)", "$(UNKNOWN)"),
    ],
)
def test_references(text: str, result: str) -> None:
    assert expanded(text, {"A": "1", "B.b-c": "two"}.get) == result


def test_variables_that_double_each_other_take_no_more_than_a_process_may_have() -> None:
    doubled = [{"name": f"A{n}", "value": f"$(A{n - 1})" * 2} for n in range(1, 40)]
    known = environment({"metadata": {}}, {"env": [{"name": "A0", "value": "x" * 1024}, *doubled]})
    assert known["A9"] == "x" * (1024 << 9)
    assert sum(map(len, known.values())) < 1.1 * MAX_CHARACTERS
    assert len(expanded("$(A9)" * 1000, known.get)) < 1.1 * MAX_CHARACTERS
