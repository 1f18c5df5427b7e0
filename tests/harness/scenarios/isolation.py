"""Jobs that get a NetworkPolicy: it exists before the first pod, and is created again after a deletion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.harness.scenario import (
    Step,
    after,
    apply,
    at_once,
    delete,
    foreign_policy,
    nothing,
    refuse,
    refuse_no_more,
    shows,
    story,
)
from tests.harness.scenarios.common import (
    FOREVER,
    MWM,
    RUNNING,
    once_it_runs,
    submit,
)

from tfgpujob.kube.errors import ApiError


def _forbidden(verb: str, kind: str, obj: Mapping[str, Any]) -> ApiError | None:
    del obj
    if (verb, kind) != ("create", "NetworkPolicy"):
        return None
    return ApiError(403, "Forbidden", 'networkpolicies.networking.k8s.io is forbidden: no right to "create"')


ISOLATION = (
    story(
        "isolated",
        submit(MWM),
        *once_it_runs(delete("NetworkPolicy", "train")),
        ends=FOREVER,
        isolated=True,
        phases=RUNNING,
    ),
    story(
        "isolated-name-taken",
        Step(at_once, apply(foreign_policy("train"))),
        submit(MWM),
        Step(shows("train", "Accepted", "False", "NameTaken"), delete("NetworkPolicy", "train")),
        isolated=True,
    ),
    story(
        "isolated-forbidden",
        Step(at_once, refuse(_forbidden)),
        submit(MWM),
        Step(shows("train", "Created", "False", "Forbidden"), nothing),
        Step(after(5), refuse_no_more),
        isolated=True,
    ),
)
