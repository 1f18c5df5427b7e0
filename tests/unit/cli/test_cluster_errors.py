"""What the API server's answers become for a person."""

from __future__ import annotations

import pytest

from tfgpujob.cli.cluster import _explained
from tfgpujob.kube.errors import ApiError

NIL = (
    "<nil>: Invalid value: null: some validation rules were not checked because the object was invalid; correct the "
    "existing errors to complete validation"
)


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        (
            f'"a" is invalid: [spec.strategy: Unsupported value: "B", {NIL}]',
            '"a" is invalid: [spec.strategy: Unsupported value: "B"]',
        ),
        (f"[spec.a: x, {NIL}, spec.b: y]", "[spec.a: x, spec.b: y]"),
        ("spec.image: Invalid value: there is no image to run", "spec.image: Invalid value: there is no image to run"),
    ],
)
def test_a_line_that_names_no_field_is_left_out(told: str, shown: str) -> None:
    """As Kubernetes 1.36 words it."""
    assert str(_explained(ApiError(422, "Invalid", told))).startswith(shown)
