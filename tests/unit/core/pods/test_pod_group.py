"""Pod groups in detail: what the whole pictures in golden/gang-*.objects.yaml don't show."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.core import make

from tfgpujob.core.observed.gang import GANG_SCHEDULERS
from tfgpujob.core.observed.snapshot import Kind
from tfgpujob.core.pods.pod_group import build_pod_group


def group(kind: Kind = Kind.VOLCANO_POD_GROUP, attempt: int = 1, **job: Any) -> Any:
    made = make.job(**job)
    return build_pod_group(made, make.parsed(made), make.plan(made), kind, attempt)


@pytest.mark.parametrize(("wanted", "least"), [(None, 4), (2, 2), (5, 5), (9, 5)])
def test_a_gang_is_all_but_the_evaluator_or_what_the_job_says_and_never_more_than_there_are(
    wanted: int | None, least: int
) -> None:
    policy = {"minAvailable": wanted} if wanted else {}
    found = group(worker=4, evaluator=1, run={"schedulingPolicy": policy})
    assert found["spec"] == {"minMember": least}


@pytest.mark.parametrize("kind", GANG_SCHEDULERS["Native"].kinds)
def test_each_version_of_the_native_api_has_its_fields(kind: Kind) -> None:
    found = group(kind, run={"schedulingPolicy": {"priorityClass": "high"}})
    assert found["apiVersion"] == f"scheduling.k8s.io/{kind.split('.')[1]}"
    priority = {} if "v1alpha2" in kind else {"priorityClassName": "high"}
    assert found["spec"] == {"schedulingPolicy": {"gang": {"minCount": 2}}, **priority}
