"""What each value of the chart does to what is installed, and that monitoring speaks of metrics that exist."""

from __future__ import annotations

import json
import re
from typing import cast

import click
import pytest
import yaml
from localcluster import helm
from tests.harness.process import settings
from tests.unit.chart.choices import ALL_MONITORING, EVERY_PAIR, NETWORK, covering, metrics, values
from tests.unit.chart.rendered import Object, environment, kinds, of, render
from tests.unit.shell.job_series import NOW, store_with_a_job

from tfgpujob import names
from tfgpujob.api import JobSpec, parse_job
from tfgpujob.cli.main import tfgpu
from tfgpujob.kube.interface import Cluster
from tfgpujob.shell.job_series import JobSeries
from tfgpujob.shell.main import Operator
from tfgpujob.shell.progress_client import FetchProgress, PutWorkers
from tfgpujob.shell.settings import from_environment, with_arguments

DIGEST = "sha256:" + "0" * 64


def pod(objects: list[Object]) -> Object:
    found: Object = of(objects, "Deployment")["spec"]["template"]["spec"]
    return found


def test_arguments_are_taken_by_the_operator() -> None:
    objects = render({"extraArgs": ["--workers=32", "--log-level=DEBUG"]})
    given = with_arguments(environment(objects), pod(objects)["containers"][0]["args"])
    read = from_environment(given)
    assert (read.workers, read.log_level, read.log_format) == (32, "DEBUG", "json")
    assert "args" not in pod(render())["containers"][0]


def test_an_argument_that_the_operator_does_not_know_ends_it() -> None:
    with pytest.raises(SystemExit):
        with_arguments({}, ["--worker-count=32"])


def test_extra_variables_come_after_the_charts() -> None:
    objects = render({"extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}]})
    assert environment(objects).items() > environment(render()).items()
    assert pod(objects)["containers"][0]["env"][-1]["name"] == "HTTPS_PROXY"


def test_extra_volumes_are_mounted_beside_tmp() -> None:
    volume = {"name": "ca", "configMap": {"name": "ca"}}
    mount = {"name": "ca", "mountPath": "/etc/ssl/certs", "readOnly": True}
    found = pod(render({"extraVolumes": [volume], "extraVolumeMounts": [mount]}))
    assert found["volumes"][1:] == [volume]
    assert found["containers"][0]["volumeMounts"][1:] == [mount]
    assert found["volumes"][0]["name"] == found["containers"][0]["volumeMounts"][0]["name"] == "tmp"


def test_extra_objects_are_filled_in() -> None:
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: '{{ .Release.Name }}-text'}"
    given = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "{{ .Release.Name }}-object"}}
    objects = render({"extraObjects": [given, text]})
    assert of(objects, "Secret")["metadata"]["name"] == "tfgpu-object"
    assert of(objects, "ConfigMap")["metadata"]["name"] == "tfgpu-text"


def test_common_labels_are_on_everything_and_replace_nothing() -> None:
    values = {"commonLabels": {"team": "ml", "app.kubernetes.io/name": "other"}, **ALL_MONITORING, **NETWORK}
    objects = render({**values, "replicas": 2})
    for item in objects:
        if item["kind"] != "CustomResourceDefinition":
            assert item["metadata"]["labels"]["team"] == "ml", item["kind"]
            assert item["metadata"]["labels"]["app.kubernetes.io/name"] == "tfgpujob", item["kind"]
    deployment = of(objects, "Deployment")["spec"]
    assert deployment["template"]["metadata"]["labels"]["team"] == "ml"
    assert "team" not in deployment["selector"]["matchLabels"], "a selector can never be changed"


def test_constraints_of_the_spread_count_the_operators_pods() -> None:
    constraint = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    own = {**constraint, "labelSelector": {"matchLabels": {"a": "b"}}}
    objects = render({"topologySpreadConstraints": [constraint, own]})
    filled, kept = pod(objects)["topologySpreadConstraints"]
    assert kept == own
    assert filled == {**constraint, "labelSelector": of(objects, "Deployment")["spec"]["selector"]}
    assert "topologySpreadConstraints" not in pod(render())


def test_a_network_policy_allows_what_the_operator_needs() -> None:
    assert "NetworkPolicy" not in kinds(render())
    objects = render(NETWORK)
    policy = of(objects, "NetworkPolicy")["spec"]
    container = pod(objects)["containers"][0]
    assert policy["podSelector"] == of(objects, "Deployment")["spec"]["selector"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    [ingress] = policy["ingress"]
    assert "from" not in ingress
    assert ingress["ports"] == [{"port": container["ports"][0]["name"], "protocol": "TCP"}]
    dns, server, progress = policy["egress"]
    assert {(p["port"], p["protocol"]) for p in dns["ports"]} == {(53, "UDP"), (53, "TCP")}
    assert [p["port"] for p in server["ports"]] == [443, 6443]
    assert progress["to"][0]["podSelector"]["matchLabels"] == {names.LABEL_APP_MANAGED_BY: names.FIELD_OWNER}


def test_the_operator_is_told_where_jobs_get_a_network_policy_and_how_its_own_pods_are_known() -> None:
    assert "NETWORK_POLICY_NAMESPACES" not in environment(render())
    objects = render({"networkPolicy": {"jobNamespaces": ["team-a", "team-b"]}})
    config = from_environment({**environment(objects), "OPERATOR_NAMESPACE": "ops"}).config
    assert config.network_policy_namespaces == {"team-a", "team-b"}
    assert dict(config.operator_labels) == of(objects, "Deployment")["spec"]["selector"]["matchLabels"]
    assert "NetworkPolicy" not in kinds(objects), "each job's is the operator's to make"


def test_a_service_monitor_brings_the_service_that_it_selects() -> None:
    assert "Service" not in kinds(render({"metrics": {"service": False}}))
    values = metrics(serviceMonitor={"interval": "7s"})
    values["metrics"]["service"] = False
    objects = render(values)
    monitor, service = of(objects, "ServiceMonitor"), of(objects, "Service")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    [endpoint] = monitor["spec"]["endpoints"]
    assert endpoint == {"port": service["spec"]["ports"][0]["name"], "path": "/metrics", "interval": "7s"}


def test_a_pod_monitor_selects_the_operators_pods() -> None:
    objects = render(metrics(podMonitor={"interval": "9s"}))
    monitor, template = of(objects, "PodMonitor"), of(objects, "Deployment")["spec"]["template"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    port = template["spec"]["containers"][0]["ports"][0]["name"]
    assert endpoint == {"port": port, "path": "/metrics", "interval": "9s"}


def served() -> dict[str, set[str]]:
    """The series of a real operator's /metrics, with the labels that each has."""
    operator = Operator(
        cast("Cluster", None),
        settings("me"),
        fetch_progress=cast("FetchProgress", None),
        put_workers=cast("PutWorkers", None),
    )
    operator.metrics.reconciled("ok", 0.1)
    operator.metrics.asked_to_resize("ok")
    operator.metrics.polled("ok")
    operator.metrics.watched("Pod")
    found: dict[str, set[str]] = {}
    of_job = JobSeries(store_with_a_job(), 9, lambda: NOW).collect()()
    for line in (operator.metrics.text() + of_job).splitlines():
        if series := re.match(r"(\w+)(?:\{(.*)\})? ", line):
            found.setdefault(series[1], set()).update(re.findall(r"(\w+)=", series[2] or ""))
    return found


def queried(expression: str) -> list[tuple[str, set[str]]]:
    """Series in a query, and the labels that it asks of each."""
    found = re.findall(r"\b((?:tfgpu|process)_\w+)(?:\{([^}]*)\})?", expression)
    return [(name, set(re.findall(r"(\w+)=", labels))) for name, labels in found]


def test_alerts_and_dashboard_speak_of_series_that_the_operator_has() -> None:
    objects = render({"metrics": {**ALL_MONITORING["metrics"], "jobSeries": 9}})
    [group] = of(objects, "PrometheusRule")["spec"]["groups"]
    boards = [json.loads(text) for text in of(objects, "ConfigMap")["data"].values()]
    assert len(boards) == 2
    expressions = [rule["expr"] for rule in group["rules"]]
    expressions += [target["expr"] for board in boards for panel in board["panels"] for target in panel["targets"]]
    known = served()
    # Prometheus adds these to what it scrapes.
    from_scraping = {"namespace", "pod", "job"}
    expressions = [re.sub(r" on \([\w, ]+\)", " on", expression) for expression in expressions]
    for expression in expressions:
        assert queried(expression), expression
        for series, labels in queried(expression):
            assert series in known, expression
            assert labels <= known[series] | from_scraping, expression
        for label in re.findall(r"by \((\w+)\)", expression):
            assert any(label in known[series] for series, _ in queried(expression)), expression
    shown = {series for expression in expressions for series, _ in queried(expression)}
    whole = {re.sub(r"_(bucket|count|sum)$", "", series) for series in known}
    assert whole - {re.sub(r"_(bucket|count|sum)$", "", series) for series in shown} == {"tfgpu_services"}


def test_alerts_name_the_release_and_say_what_to_do() -> None:
    values = {"metrics": {**ALL_MONITORING["metrics"], "jobSeries": 9}}
    [group] = of(render(values), "PrometheusRule")["spec"]["groups"]
    page = (helm.CHART.parents[1] / "docs/alerts.md").read_text()
    for rule in group["rules"]:
        assert f"| {rule['alert']} |" in page
        assert 'namespace="ops"' in rule["expr"]
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert set(rule["annotations"]) == {"summary", "description"}
        assert "{{" not in json.dumps(rule)


@pytest.mark.parametrize("namespaces", [[], ["team-a", "team-b"]])
def test_helm_test_asks_what_the_operator_may_ask(namespaces: list[str]) -> None:
    chart = (helm.CHART / "templates/tests/installation.yaml").read_text()
    assert "helm.sh/hook: test" in chart
    [tested] = helm.hooks(values={"watchNamespaces": namespaces}, release="tfgpu", namespace="ops")
    spec, labels = tested["spec"], tested["metadata"]["labels"]
    [container] = spec["containers"]
    # With its settings: click keeps the help option that a command is asked for first.
    root = click.Context(tfgpu, **tfgpu.context_settings)
    verb = tfgpu.get_command(root, container["command"][1])
    assert verb is not None
    given = verb.make_context("list", list(container["args"]), parent=root).params
    assert (given["all_namespaces"], given["namespace"]) == (not namespaces, "team-a" if namespaces else None)
    objects = render({"watchNamespaces": namespaces})
    assert spec["serviceAccountName"] == pod(objects)["serviceAccountName"]
    assert container["image"] == pod(objects)["containers"][0]["image"]
    assert not of(objects, "Service")["spec"]["selector"].items() <= labels.items(), "it is no copy of the operator"


def test_what_artifact_hub_shows_is_true() -> None:
    told = yaml.safe_load((helm.CHART / "Chart.yaml").read_text())["annotations"]
    images = {image["image"] for image in yaml.safe_load(told["artifacthub.io/images"])}
    assert images == {environment(render())[name] for name in ("OPERATOR_IMAGE", "TRAINER_IMAGE")}
    [example] = yaml.safe_load(told["artifacthub.io/crdsExamples"])
    assert isinstance(parse_job(example), JobSpec)


def test_every_two_choices_go_together() -> None:
    rows = list(covering())
    assert [pair for pair in EVERY_PAIR if not any(pair <= row.items() for row in rows)] == []
    for row in rows:
        objects = render(values(row))
        places = [(o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"]) for o in objects]
        assert len(places) == len(set(places)), row
        assert from_environment(environment(objects)).lease_name == "tfgpu-tfgpujob", row
