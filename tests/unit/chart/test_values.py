"""The chart's values: refused by name when wrong, and all of them described and documented."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from localcluster import helm
from tests.unit.chart.rendered import Object, leaves, render


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"replica": 2}, ["replica", "not allowed"]),
        ({"image": {"repo": "x"}}, ["/image", "repo", "not allowed"]),
        ({"metrics": {"serviceMonitor": {"intervall": "3s"}}}, ["/metrics/serviceMonitor", "intervall"]),
        ({"replicas": "two"}, ["/replicas", "want integer"]),
        ({"image": {"digest": "abc"}}, ["/image/digest", "sha256"]),
        ({"image": {"pullPolicy": "Sometimes"}}, ["/image/pullPolicy", "IfNotPresent"]),
        ({"watchNamespaces": "team-a"}, ["/watchNamespaces", "want array"]),
        ({"watchNamespaces": ["Team_A"]}, ["/watchNamespaces/0", "Team_A"]),
        ({"watchNamespaceSelector": "a=\n"}, ["/watchNamespaceSelector"]),
        ({"allowedServiceAccounts": ["trainer"]}, ["/allowedServiceAccounts/0", "trainer"]),
        ({"progress": {"intervalSeconds": -1}}, ["/progress/intervalSeconds", "-1"]),
        ({"networkPolicy": {"jobNamespaces": ["Team_A"]}}, ["/networkPolicy/jobNamespaces/0", "Team_A"]),
        ({"gang": {"backends": ["KAI"]}}, ["/gang/backends/0", "Volcano"]),
        ({"replicas": 2, "history": {"enabled": True}}, ["replicas", "one pod", "history.databaseSecret"]),
        ({"log": {"format": "xml"}}, ["/log/format", "json"]),
        ({"history": None}, ["history is missing", "--reset-then-reuse-values"]),
    ],
)
def test_wrong_values_are_refused_by_name(values: Object, words: list[str]) -> None:
    with pytest.raises(helm.HelmError) as refused:
        render(values)
    assert all(word in str(refused.value) for word in words), str(refused.value)


def test_the_schema_knows_every_value_and_no_other() -> None:
    schema = json.loads((helm.CHART / "values.schema.json").read_text())
    values = yaml.safe_load((helm.CHART / "values.yaml").read_text())

    def compare(where: str, described: Object, given: Object) -> None:
        properties = described["properties"]
        assert set(properties) - {"global"} == set(given), where
        assert described["additionalProperties"] is False, where
        for key, value in given.items():
            if isinstance(value, dict) and "properties" in properties[key]:
                compare(f"{where}.{key}", properties[key], value)

    compare("", schema, values)


def test_the_documentation_lists_every_value_with_its_default() -> None:
    listed = {line.split("|")[1].strip(): line for line in documented() if line.startswith("| `")}
    values = yaml.safe_load((helm.CHART / "values.yaml").read_text())
    expected = dict(leaves("", values))
    assert set(listed) == {f"`{key}`" for key in expected}
    for key, value in expected.items():
        assert f"| `{json.dumps(value)}` |" in listed[f"`{key}`"], key


def documented() -> list[str]:
    page = Path(__file__).resolve().parents[3] / "docs" / "reference" / "values.md"
    values = page.read_text().partition("\n## Values\n")[2].partition("\n## ")[0]
    return values.splitlines()
