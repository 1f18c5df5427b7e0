"""What Kubernetes makes of `$(NAME)`."""

from __future__ import annotations

import pytest

from tfgpujob.core.pods.expansion import expanded


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
