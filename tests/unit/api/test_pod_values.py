"""What Kubernetes refuses in a pod template is refused by its field; tests/integration asks a real API server."""

from __future__ import annotations

from tests.unit.api.pod_cases import ACCEPTED, REFUSED

from tfgpujob.api.pod_schema import against_schema


def test_each_wrong_value_is_refused_once_by_its_field() -> None:
    found = [[invalid.field for invalid in against_schema(template, "")] for _, template in REFUSED]
    assert found == [[f".{at}"] for at, _ in REFUSED]


def test_odd_values_that_kubernetes_accepts_are_accepted() -> None:
    assert [invalid for template in ACCEPTED for invalid in against_schema(template, "")] == []
