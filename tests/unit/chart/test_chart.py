"""The chart as Helm renders it: what is installed, with which rights, and which values are refused."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import helm_python
import pytest
import yaml
from localcluster import helm
from tests.unit.chart.rendered import Object, environment, kinds, of, render, rights

import tfgpujob
from tfgpujob import names
from tfgpujob.api import admission_policy
from tfgpujob.core.observed.gang import GANG_SCHEDULERS
from tfgpujob.core.observed.snapshot import POD_GROUPS, WORKLOADS
from tfgpujob.kube import paths
from tfgpujob.shell import settings

DIGEST = "sha256:" + "0" * 64

JOB_RIGHTS = {
    *((names.GROUP, names.PLURAL, verb, "") for verb in ("get", "list", "watch", "delete")),
    (names.GROUP, f"{names.PLURAL}/status", "update", ""),
    (names.GROUP, f"{names.PLURAL}/finalizers", "update", ""),
    *(("", "pods", verb, "") for verb in ("get", "list", "watch", "create", "delete")),
    *(("", "services", verb, "") for verb in ("get", "list", "watch", "create")),
    ("", "events", "create", ""),
}
NODE_RIGHTS = {("", "nodes", verb, "") for verb in ("list", "watch")}
LEASE_RIGHTS = {
    ("coordination.k8s.io", "leases", "create", ""),
    ("coordination.k8s.io", "leases", "get", "tfgpu-tfgpujob"),
    ("coordination.k8s.io", "leases", "update", "tfgpu-tfgpujob"),
}


def test_the_chart_carries_the_version_of_the_package() -> None:
    chart = yaml.safe_load((helm.CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == tfgpujob.__version__
    environ = environment(render())
    assert environ["OPERATOR_IMAGE"] == f"tfgpujob-operator:{tfgpujob.__version__}"
    assert environ["TRAINER_IMAGE"] == f"tfgpujob-trainer:{tfgpujob.__version__}"


@pytest.mark.parametrize("name", ["tfgpujobs.yaml", "tfgpujobs-no-cel.yaml"])
def test_the_chart_links_to_the_generated_definition(name: str) -> None:
    assert (helm.CHART / "files" / name).readlink() == Path("../../../crds", name)


def test_helm_packages_the_definition_and_not_a_link_to_it(tmp_path: Path) -> None:
    with tarfile.open(helm_python.package(helm.CHART, destination=tmp_path)) as archive:
        packed = {member.name: member for member in archive if "/files/" in member.name}
        for path in (helm.CHART / "files").iterdir():
            content = archive.extractfile(packed[f"tfgpujob/files/{path.name}"])
            assert content is not None
            assert content.read() == path.read_bytes()
    assert all(member.isreg() for member in packed.values())


def test_helm_has_no_error_to_find_in_the_chart() -> None:
    assert helm_python.lint(helm.CHART, strict=True)["errors"] == []


@pytest.mark.parametrize(
    ("version", "cel"), [("v1.20.2", False), ("v1.27.16", False), ("v1.28.0-gke.1", True), ("v1.36.1", True)]
)
def test_the_definition_has_rules_where_the_server_runs_them(version: str, cel: bool) -> None:
    definition = of(render(version=version), "CustomResourceDefinition")
    assert definition["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    name = "tfgpujobs.yaml" if cel else "tfgpujobs-no-cel.yaml"
    assert definition == yaml.load((helm.CHART / "files" / name).read_text(), Loader=yaml.CSafeLoader)
    assert ("x-kubernetes-validations" in json.dumps(definition)) is cel


def test_cluster_mode_has_exactly_the_rights_of_the_design() -> None:
    objects = render()
    assert rights(of(objects, "ClusterRole", "tfgpu-tfgpujob")["rules"]) == JOB_RIGHTS | NODE_RIGHTS
    binding = of(objects, "ClusterRoleBinding")
    assert binding["roleRef"]["name"] == "tfgpu-tfgpujob"
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "tfgpu-tfgpujob", "namespace": "ops"}]
    lease = of(objects, "Role")
    assert lease["metadata"]["namespace"] == "ops"
    assert rights(lease["rules"]) == LEASE_RIGHTS
    assert environment(objects)["LEASE_NAME"] == "tfgpu-tfgpujob"
    assert environment(objects)["WATCH_NAMESPACES"] == ""
    assert environment(objects)["PROGRESS_SECONDS"] == "30"


def test_namespaced_mode_has_a_role_in_each_namespace_and_no_cluster_right() -> None:
    objects = render({"watchNamespaces": ["team-a", "team-b"], "rbac": {"aggregateToDefaultRoles": False}})
    assert kinds(objects).isdisjoint({"ClusterRole", "ClusterRoleBinding"})
    roles = {(o["metadata"]["namespace"], o["metadata"]["name"]): o for o in objects if o["kind"] == "Role"}
    assert set(roles) == {
        ("team-a", "tfgpu-tfgpujob"),
        ("team-b", "tfgpu-tfgpujob"),
        ("ops", "tfgpu-tfgpujob-leader"),
    }
    for namespace in ("team-a", "team-b"):
        assert rights(roles[namespace, "tfgpu-tfgpujob"]["rules"]) == JOB_RIGHTS
    bindings = [o for o in objects if o["kind"] == "RoleBinding"]
    assert {o["metadata"]["namespace"] for o in bindings} == {"team-a", "team-b", "ops"}
    assert all(o["subjects"][0]["namespace"] == "ops" for o in bindings)
    assert environment(objects)["WATCH_NAMESPACES"] == "team-a,team-b"


READ = "get list watch"
OPTIONAL: list[tuple[Object, str, str, str]] = [
    ({"networkPolicy": {"jobNamespaces": ["*"]}}, "networking.k8s.io", "networkpolicies", f"{READ} create"),
    ({"volumeClaims": {"enabled": True}}, "", "persistentvolumeclaims", "get create"),
    ({"deviceClaims": {"enabled": True}}, "resource.k8s.io", "resourceclaimtemplates", "get create"),
    *(
        (
            {"gang": {"backends": [gang]}},
            POD_GROUPS[row.kinds[0]].partition("/")[0],
            "podgroups",
            "get list watch create delete",
        )
        for gang, row in GANG_SCHEDULERS.items()
    ),
]


@pytest.mark.parametrize("namespaces", [[], ["team-a"]])
@pytest.mark.parametrize(("values", "group", "resource", "verbs"), OPTIONAL)
def test_a_right_is_asked_for_only_where_it_is_used(
    values: Object, group: str, resource: str, verbs: str, namespaces: list[str]
) -> None:
    role, besides = ("Role", JOB_RIGHTS) if namespaces else ("ClusterRole", JOB_RIGHTS | NODE_RIGHTS)
    found = of(render({**values, "watchNamespaces": namespaces}), role, "tfgpu-tfgpujob")
    assert rights(found["rules"]) - besides == {(group, resource, verb, "") for verb in verbs.split()}


@pytest.mark.parametrize("namespaces", [[], ["ml"]])
def test_the_rights_to_kueue_are_asked_for_only_where_it_is_enabled(namespaces: list[str]) -> None:
    assert not [o for o in render({"watchNamespaces": namespaces}) if o["metadata"]["name"].endswith("-kueue")]
    objects = render({"watchNamespaces": namespaces, "kueue": {"enabled": True}})
    found = rights(of(objects, "Role" if namespaces else "ClusterRole", "tfgpu-tfgpujob")["rules"])
    group, workloads = paths.api(WORKLOADS[0])[0].split("/")[2], paths.api(WORKLOADS[0])[1]
    verbs = ("get", "list", "watch", "create", "delete")
    expected = {(group, workloads, verb, "") for verb in verbs} | {(group, f"{workloads}/status", "update", "")}
    assert found - JOB_RIGHTS - NODE_RIGHTS == expected
    named = {(group, "resourceflavors"), (group, "workloadpriorityclasses"), ("scheduling.k8s.io", "priorityclasses")}
    without_namespace = rights(of(objects, "ClusterRole", "tfgpu-tfgpujob-kueue")["rules"])
    assert without_namespace == {(*what, verb, "") for what in named for verb in ("list", "watch")}
    bound = of(objects, "ClusterRoleBinding", "tfgpu-tfgpujob-kueue")
    assert bound["roleRef"]["name"] == "tfgpu-tfgpujob-kueue"
    container = of(objects, "Deployment", "tfgpu-tfgpujob")["spec"]["template"]["spec"]["containers"][0]
    assert {"name": "KUEUE_ENABLED", "value": "true"} in container["env"]


def test_the_default_gang_scheduler_is_one_that_jobs_may_use() -> None:
    with pytest.raises(helm.HelmError, match=r"gang\.default is Native, which gang\.backends does not name"):
        render({"gang": {"backends": ["Volcano"], "default": "Native"}})


def test_users_get_jobs_by_the_roles_that_they_have() -> None:
    objects = render()
    read, write = {"get", "list", "watch"}, {"create", "update", "patch", "delete", "deletecollection"}
    for role, verbs in (("admin", read | write), ("edit", read | write), ("view", read)):
        found = of(objects, "ClusterRole", f"tfgpu-tfgpujob-{role}")
        assert found["metadata"]["labels"][f"rbac.authorization.k8s.io/aggregate-to-{role}"] == "true"
        expected = {(names.GROUP, names.PLURAL, verb, "") for verb in verbs}
        expected |= {(names.GROUP, f"{names.PLURAL}/status", "get", "")}
        scales = {"get"} if role == "view" else {"get", "update", "patch"}
        assert rights(found["rules"]) == expected | {(names.GROUP, f"{names.PLURAL}/scale", v, "") for v in scales}


ALL_VALUES: Object = {
    "replicas": 2,
    "podLabels": {"team": "ml"},
    "podAnnotations": {"note": "x"},
    "imagePullSecrets": ["pull"],
    "nodeSelector": {"pool": "cpu"},
    "tolerations": [{"operator": "Exists"}],
    "priorityClassName": "high",
    "affinity": {"nodeAffinity": {}},
    "metrics": {"serviceMonitor": {"enabled": True, "labels": {"release": "prom"}}},
    "serviceAccount": {"annotations": {"a": "b"}},
}


@pytest.mark.parametrize("values", [{}, ALL_VALUES])
def test_the_operator_passes_the_restricted_pod_security_standard(values: Object) -> None:
    pod = of(render(values), "Deployment")["spec"]["template"]["spec"]
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    allowed = {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
    assert all(set(volume) - {"name"} <= allowed for volume in pod["volumes"])
    for container in [*pod["containers"], *pod.get("initContainers", [])]:
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["readOnlyRootFilesystem"] is True
        assert "privileged" not in context
        assert not any("hostPort" in port for port in container["ports"])
        assert container["resources"]["requests"]
        assert container["resources"]["limits"]["memory"]


def test_probes_ask_where_the_operator_answers() -> None:
    container = of(render(), "Deployment")["spec"]["template"]["spec"]["containers"][0]
    (port,) = container["ports"]
    assert port["containerPort"] == settings.from_environment(environment(render())).health_port
    for probe, path in (("livenessProbe", "/healthz"), ("readinessProbe", "/readyz"), ("startupProbe", "/healthz")):
        assert container[probe]["httpGet"] == {"path": path, "port": port["name"]}


def test_the_systems_namespaces_are_left_out_unless_namespaces_are_named() -> None:
    def excluded(**values: object) -> frozenset[str]:
        return settings.from_environment(environment(render(values))).exclude_namespaces

    own = {"ops"}
    assert excluded() == {"kube-system"} | own
    assert excluded(excludeNamespaces=["a", "b"]) == {"a", "b"} | own
    assert excluded(excludeReleaseNamespace=False) == {"kube-system"}
    assert excluded(watchNamespaces=["team-a"]) == frozenset()


def test_a_label_selector_of_namespaces_comes_with_the_right_to_see_them() -> None:
    objects = render({"watchNamespaceSelector": "team=ml,gpu"})
    seen = {("", "namespaces", verb, "") for verb in ("list", "watch")}
    assert rights(of(objects, "ClusterRole", "tfgpu-tfgpujob")["rules"]) == JOB_RIGHTS | NODE_RIGHTS | seen
    read = settings.from_environment(environment(objects))
    assert read.watch_namespace_selector == "team=ml,gpu"
    assert read.exclude_namespaces == {"kube-system", "ops"}
    with pytest.raises(helm.HelmError, match="watchNamespaces and watchNamespaceSelector are both set: leave one"):
        render({"watchNamespaceSelector": "gpu", "watchNamespaces": ["a"]})


def test_the_host_gate_may_be_the_api_servers_too() -> None:
    assert "ValidatingAdmissionPolicy" not in kinds(render(version="v1.30.0"))
    on: Object = {"admissionPolicy": {"enabled": True}}
    objects = render(
        {**on, "allowHostAccessNamespaces": ["infra"], "watchNamespaces": ["a", "infra"]}, version="v1.30.0"
    )
    spec = of(objects, "ValidatingAdmissionPolicy")["spec"]
    assert {key: spec[key] for key in ("variables", "validations")} == admission_policy.policy()
    assert spec["failurePolicy"] == "Fail"
    chosen = spec["matchConstraints"]["namespaceSelector"]["matchExpressions"]
    assert [(each["operator"], each["values"]) for each in chosen] == [("In", ["a", "infra"]), ("NotIn", ["infra"])]
    binding = of(objects, "ValidatingAdmissionPolicyBinding")
    name = of(objects, "ValidatingAdmissionPolicy")["metadata"]["name"]
    assert binding["spec"] == {"policyName": name, "validationActions": ["Deny"]}
    everywhere = render({**on, "allowHostAccessNamespaces": ["*"]}, version="v1.30.0")
    assert "ValidatingAdmissionPolicy" not in kinds(everywhere)
    with pytest.raises(helm.HelmError, match=r"needs Kubernetes 1\.30 or later"):
        render(on, version="v1.29.3")


def test_copies_prefer_different_nodes() -> None:
    affinity = of(render({"replicas": 2}), "Deployment")["spec"]["template"]["spec"]["affinity"]
    (term,) = affinity["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert term["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"


def test_a_history_can_be_enabled_by_an_upgrade() -> None:
    """The API server refuses Recreate beside RollingUpdate's defaults, which Helm removes only if it has set them."""
    without = of(render({}), "Deployment")["spec"]["strategy"]
    assert without == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}}
    values = {"ui": {"enabled": True}, "history": {"enabled": True}}
    assert of(render(values), "Deployment")["spec"]["strategy"] == {"type": "Recreate"}


@pytest.mark.parametrize(("version", "served"), [("v1.20.2", "policy/v1beta1"), ("v1.21.0", "policy/v1")])
def test_a_disruption_budget_where_there_is_more_than_one_copy(version: str, served: str) -> None:
    assert of(render({"replicas": 2}, version), "PodDisruptionBudget")["apiVersion"] == served
    for values in ({"replicas": 1}, {"replicas": 2, "podDisruptionBudget": {"enabled": False}}):
        assert "PodDisruptionBudget" not in kinds(render(values, version))


def test_selectors_find_the_operator_and_no_pod_of_a_job() -> None:
    objects = render({"replicas": 2})
    deployment = of(objects, "Deployment")["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    for selector in (
        deployment["selector"]["matchLabels"],
        of(objects, "Service")["spec"]["selector"],
        of(objects, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
    ):
        assert selector.items() <= labels.items()
        assert selector[names.LABEL_APP_COMPONENT] not in set(names.Role)


def test_every_port_names_its_protocol() -> None:
    """Helm 4 applies on the server, and Kubernetes 1.20 refuses a port without it there."""
    objects = render()
    pod = of(objects, "Deployment")["spec"]["template"]["spec"]
    ports = [*of(objects, "Service")["spec"]["ports"], *pod["containers"][0]["ports"]]
    assert all(port["protocol"] == "TCP" for port in ports)


def test_every_namespaced_object_says_where_it_goes() -> None:
    cluster = {"CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding"}
    for item in render(ALL_VALUES):
        assert ("namespace" in item["metadata"]) == (item["kind"] not in cluster), item["kind"]


def test_the_page_has_no_token_and_the_operator_keeps_its_own() -> None:
    spec = of(render({"ui": {"enabled": True}, "history": {"enabled": True}}), "Deployment")["spec"]["template"]["spec"]
    operator, page = spec["containers"]
    place = "/var/run/secrets/kubernetes.io/serviceaccount"
    mounts = {mount["mountPath"]: mount["name"] for mount in page["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes[mounts[place]]["configMap"] == {
        "name": "kube-root-ca.crt",
        "items": [{"key": "ca.crt", "path": "ca.crt"}],
    }
    assert place not in {mount["mountPath"] for mount in operator["volumeMounts"]}
    assert mounts["/var/lib/tfgpu"] == "history"
    assert page["securityContext"] == operator["securityContext"]
    assert {variable["name"] for variable in page["env"]} == {"HISTORY_DATABASE"}


def test_the_page_may_be_reached_through_the_api_server_and_nothing_else() -> None:
    objects = render({"ui": {"enabled": True}})
    role = next(o for o in objects if (o["kind"], o["metadata"]["name"]) == ("Role", "tfgpu-tfgpujob-ui"))
    assert role["rules"] == [
        {
            "apiGroups": [""],
            "resources": ["services/proxy"],
            "resourceNames": ["tfgpu-tfgpujob-ui:http"],
            "verbs": ["get"],
        }
    ]
    assert f"tfgpu-system/{role['metadata']['name']}" == names.PAGE_SERVICE
