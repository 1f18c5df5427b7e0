"""Broken jobs: refused by the API server's schema, or shown as a condition. Then silence."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial

import pytest
from tests.integration.audit import AuditLog
from tests.integration.kube import Object, Refused, path_of
from tests.integration.workspace import Workspace
from tests.unit.api.pod_cases import ACCEPTED, REFUSED

Break = Callable[[Object], None]


def _template(job: Object) -> Object:
    template: Object = job["spec"]["replicaSpecs"]["worker"]["template"]
    return template


def unknown_strategy(job: Object) -> None:
    job["spec"]["strategy"] = "MultiWorker"


def ps_under_multi_worker_mirrored(job: Object) -> None:
    job["spec"]["replicaSpecs"]["ps"] = {"replicas": 1}


def two_evaluators(job: Object) -> None:
    job["spec"]["replicaSpecs"]["evaluator"] = {"replicas": 2}


def negative_replicas(job: Object) -> None:
    job["spec"]["replicaSpecs"]["worker"]["replicas"] = -1


def name_of_49_characters(job: Object) -> None:
    job["metadata"]["name"] = "n" * 49


def dotted_name(job: Object) -> None:
    job["metadata"]["name"] = "my.job"


def trainer_and_command(job: Object) -> None:
    job["spec"]["trainer"] = {"entrypoint": "digits", "globalBatchSize": 128, "epochs": 1}


def misspelt_spec_field(job: Object) -> None:
    job["spec"]["runPolicy"] = {"cleanPodPolice": "All"}


def restart_policy_in_the_template(job: Object) -> None:
    _template(job)["spec"]["restartPolicy"] = "OnFailure"


def misspelt_template_field(job: Object) -> None:
    _template(job)["spec"]["nodeSelecter"] = {"gpu": "a100"}


def misspelt_container_field(job: Object) -> None:
    _template(job)["spec"]["containers"][0]["workingdir"] = "/tmp"


def template_value_that_only_the_server_refuses(job: Object) -> None:
    _template(job)["spec"]["hostAliases"] = [{"ip": "10.0.0", "hostnames": ["a"]}]


BROKEN: dict[Break, tuple[str, str]] = {
    unknown_strategy: ("strategy", "MultiWorkerMirrored"),
    ps_under_multi_worker_mirrored: ("spec.replicaSpecs.ps", "parameter servers"),
    two_evaluators: ("spec.replicaSpecs.evaluator.replicas", "one evaluator"),
    negative_replicas: ("spec.replicaSpecs.worker.replicas", "0"),
    name_of_49_characters: ("metadata.name", "48"),
    dotted_name: ("metadata.name", "my.job"),
    trainer_and_command: ("template.spec.containers", "remove"),
    restart_policy_in_the_template: ("restartPolicy", "remove it"),
    misspelt_template_field: ("nodeSelecter", "template"),
    misspelt_container_field: ("workingdir", "template"),
    template_value_that_only_the_server_refuses: ("hostAliases", "template"),
}
"""How a job is broken, and what the refusal must say: the field, and words of the problem or the fix."""


def broken_job(workspace: Workspace, damage: Break) -> Object:
    job = workspace.new_job(damage.__name__.replace("_", "-")[:48])
    damage(job)
    return job


def shown(workspace: Workspace, name: str) -> str:
    """The message of the condition that says no; empty while there is none."""
    for of_type in ("Accepted", "Created"):
        condition = workspace.condition(name, of_type)
        if condition.get("status") == "False" and condition["reason"] not in {"WaitingForOldPods"}:
            return str(condition["message"])
    return ""


def _holds_no_pods(workspace: Workspace, name: str) -> bool:
    return all("deletionTimestamp" in pod["metadata"] for pod in workspace.pods(name).values())


def wait_until_shown(workspace: Workspace, name: str) -> str:
    """The message."""
    message: str = workspace.eventually(lambda: shown(workspace, name), f"{name} is refused")
    return message


def test_a_misspelt_field_of_the_spec_is_pruned_or_refused_but_never_obeyed(workspace: Workspace) -> None:
    """A structural schema prunes it; a client with strict validation (kubectl ≥ 1.25) refuses it."""
    job = workspace.new_job("misspelt")
    misspelt_spec_field(job)
    try:
        name = workspace.submit(job)
    except Refused as refused:
        assert "cleanPodPolice" in refused.message  # noqa: PT017 - either answer is right
    else:
        assert "cleanPodPolice" not in workspace.kube.get("TFGPUJob", workspace.namespace, name)["spec"]["runPolicy"]


def test_a_corrected_job_runs(workspace: Workspace) -> None:
    """A refused job need not be deleted: an edit is enough. It breaks a rule that only the operator checks: what CEL
    checks is refused before the job exists."""
    job = workspace.new_job("corrected")
    evaluator = deepcopy(job["spec"]["replicaSpecs"]["worker"])
    evaluator["template"]["spec"]["containers"][0]["env"] = [{"name": "TF_CONFIG", "value": "{}"}]
    job["spec"]["replicaSpecs"]["evaluator"] = {**evaluator, "replicas": 1}
    name = workspace.submit(job)
    wait_until_shown(workspace, name)
    workspace.edit(name, replicaSpecs={"evaluator": None})
    assert workspace.finished(name) == "Succeeded"


@pytest.mark.smoke
def test_refused_jobs_name_field_problem_and_fix_and_cost_nothing_after_the_first_look(
    workspace: Workspace, audit: AuditLog
) -> None:
    """No hot loop: while the leader renews its Lease three times, it asks nothing about them."""
    said, stored = {}, {}
    for damage in BROKEN:
        try:
            stored[damage] = workspace.submit(broken_job(workspace, damage))
        except Refused as refused:
            assert refused.code == 422  # noqa: PT017 - one of two right answers
            said[damage] = refused.message
    for damage, name in stored.items():
        said[damage] = wait_until_shown(workspace, name)
        # The status is written first; a second worker that was created beside the refused one is deleted right after.
        workspace.eventually(partial(_holds_no_pods, workspace, name), f"{name} holds no pods")
    for damage, message in said.items():
        assert [words for words in BROKEN[damage] if words not in message] == [], message
    # The deletions that follow a refused start have been answered when the Lease has been renewed once.
    audit.renewals(audit.position(), 1)
    quiet = audit.position()
    audit.renewals(quiet, 3)
    assert audit.since(quiet, workspace.namespace) == []


def test_templates_are_refused_as_the_api_server_refuses_their_pods(workspace: Workspace) -> None:
    def refused(template: Object) -> bool:
        pod = {"metadata": {"name": "p", **template["metadata"]}, "spec": template["spec"]}
        try:
            workspace.kube.call("POST", f"{path_of('Pod', workspace.namespace)}?dryRun=All", pod)
        except Refused:
            return True
        return False

    assert [at for at, template in REFUSED if not refused(template)] == []
    assert [template for template in ACCEPTED if refused(template)] == []
