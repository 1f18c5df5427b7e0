"""The gang scheduler of an attempt's pods, and the warnings about it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.core import make

from tfgpujob.core.observed.gang import GANG_SCHEDULERS, choose_gang, pod_group_kind, unserved_gang, without_effect
from tfgpujob.core.observed.plan import Plan
from tfgpujob.core.observed.snapshot import POD_GROUPS, Kind

VOLCANO = ("Volcano", Kind.VOLCANO_POD_GROUP)
PLUGINS = ("SchedulerPlugins", Kind.COSCHEDULING_POD_GROUP)
NATIVE = ("Native", Kind.NATIVE_POD_GROUP)


def chosen(*gangs: tuple[str, Kind], default: str = "", template: dict[str, Any] | None = None, **policy: Any) -> str:
    run = {"schedulingPolicy": policy} if policy else {}
    spec = make.parsed(make.job(worker={"replicas": 2, **({"template": template} if template else {})}, run=run))
    config = replace(make.CONFIG, gangs=gangs, default_gang=default, coscheduling_scheduler="second")
    return "/".join(filter(None, choose_gang(spec, config)))


def test_auto_is_the_default_or_the_only_one_that_is_served() -> None:
    assert chosen() == ""
    assert chosen(VOLCANO) == "Volcano/volcano"
    assert chosen(VOLCANO, NATIVE) == ""
    assert chosen(VOLCANO, NATIVE, default="Native") == "Native"
    assert chosen(NATIVE, default="Volcano") == "", "the administrator's choice is not replaced by another"


def test_a_job_may_name_one_or_none() -> None:
    assert chosen(VOLCANO, NATIVE, gang="Native") == "Native"
    assert chosen(VOLCANO, PLUGINS, gang="SchedulerPlugins") == "SchedulerPlugins/second"
    assert chosen(VOLCANO, gang="None") == ""
    assert chosen(VOLCANO, gang="Native") == ""


@pytest.mark.parametrize(
    ("template", "gang"),
    [
        ({"spec": {"schedulerName": "volcano"}}, "Volcano/volcano"),
        ({"spec": {"schedulerName": "mine"}}, ""),
        ({"spec": {"schedulerName": "default-scheduler"}}, ""),
        ({"metadata": {"annotations": {"scheduling.k8s.io/group-name": "mine"}}}, ""),
        ({"metadata": {"labels": {"scheduling.x-k8s.io/pod-group": "mine"}}}, ""),
        ({"metadata": {"labels": {"a": "b"}}}, "Volcano/volcano"),
    ],
)
def test_auto_leaves_a_template_alone_that_says_itself_how_it_is_scheduled(template: dict[str, Any], gang: str) -> None:
    assert chosen(VOLCANO, template=template) == gang
    assert chosen(VOLCANO, template=template, gang="Volcano") == "Volcano/volcano"


def test_the_default_scheduler_by_name_is_the_native_gangs_own() -> None:
    assert chosen(NATIVE, template={"spec": {"schedulerName": "default-scheduler"}}) == "Native"
    assert chosen(NATIVE, template={"spec": {"schedulerName": "volcano"}}) == ""


def test_a_gang_scheduler_that_is_not_there_is_refused_with_field_and_fix() -> None:
    spec = make.parsed(make.job(run={"schedulingPolicy": {"gang": "Volcano"}}))
    assert str(unserved_gang(spec, replace(make.CONFIG, gangs=(NATIVE,)))) == (
        "spec.runPolicy.schedulingPolicy.gang: Volcano is no gang scheduler that this operator uses: it uses one of "
        "Native; leave gang out, or have an administrator install the scheduler, name it in the chart's gang.backends "
        "and restart the operator"
    )
    assert "it uses none" in str(unserved_gang(spec, replace(make.CONFIG, gangs=())))
    assert unserved_gang(spec, replace(make.CONFIG, gangs=(VOLCANO,))) is None
    assert unserved_gang(spec, replace(make.CONFIG, gangs=None)) is None, "without a cluster there is none to ask"


@pytest.mark.parametrize(
    ("gang", "unheard"),
    [
        ("", ["minAvailable", "minResources", "queue"]),
        ("Volcano", []),
        ("SchedulerPlugins", ["queue"]),
        ("Native", ["minResources", "queue"]),
    ],
)
def test_what_a_pod_group_has_no_place_for_is_said(gang: str, unheard: list[str]) -> None:
    policy = {"minAvailable": 2, "minResources": {"cpu": 1}, "queue": "q", "priorityClass": "p"}
    said = list(without_effect(make.parsed(make.job(run={"schedulingPolicy": policy})), gang))
    assert [text.split()[0].rpartition(".")[2] for text in said] == unheard
    assert all(f"with {gang}" in text if gang else "gang.backends" in text for text in said)


def test_a_gang_that_is_not_in_use_any_more_is_said() -> None:
    spec = make.parsed(make.job(run={"schedulingPolicy": {"gang": "Volcano"}}))
    assert list(without_effect(spec, "")) == [
        "spec.runPolicy.schedulingPolicy.gang has no effect: Volcano is not in use."
    ]


def test_the_attempt_keeps_what_it_was_started_with() -> None:
    job = make.job(run={"schedulingPolicy": {"gang": "SchedulerPlugins"}})
    config = replace(make.CONFIG, gangs=(PLUGINS,), coscheduling_scheduler="second")
    plan = make.plan(job, config)
    assert (plan.to_status()["gang"], plan.to_status()["schedulerName"]) == ("SchedulerPlugins", "second")
    assert Plan.from_status(plan.to_status()) == plan
    assert pod_group_kind(plan.gang, config) is Kind.COSCHEDULING_POD_GROUP
    assert pod_group_kind(plan.gang, make.CONFIG) is None, "it was turned off"
    assert not {"gang", "schedulerName"} & set(make.plan(make.job()).to_status())


def test_each_pod_group_belongs_to_one_gang_scheduler() -> None:
    kinds = [kind for row in GANG_SCHEDULERS.values() for kind in row.kinds]
    assert sorted(kinds) == sorted(POD_GROUPS)
    assert POD_GROUPS[Kind.VOLCANO_POD_GROUP] == "scheduling.volcano.sh/v1beta1"
