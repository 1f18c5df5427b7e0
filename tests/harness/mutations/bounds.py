"""What a job costs: time and memory."""

from __future__ import annotations

import re
from copy import deepcopy
from typing import Any

from tests.harness.mutations.mutation import Mutation, instead

from tfgpujob.core.observed import trim
from tfgpujob.core.observed.snapshot import Create
from tfgpujob.core.policies import ensure_pods
from tfgpujob.shell.worker import Worker
from tfgpujob_contract import limits


def _cubic(real: Any) -> Any:
    text = r"(mlock\w*|ibv_(reg_mr|create_)\w*)[^\n]*Cannot allocate memory"
    return {**real, "locked memory": re.compile(text)}


@instead
def _all_at_once(real: Any, ctx: Any, replica: Any) -> Create:
    create = real(ctx, replica)
    return Create(create.kind, deepcopy(dict(create.body)), create.needs)


def _at_once(real: Any) -> Any:
    return lambda self, key, now, *due: real(self, key, now, now)


MUTATIONS = (
    Mutation("search a message with a cubic pattern", "loop_lag", (limits, "PATTERNS"), _cubic, ("large",)),
    Mutation("make the bodies of all pods at once", "bytes", (ensure_pods, "_build_pod"), _all_at_once, ("large",)),
    Mutation("keep specs as objects", "bytes", (trim, "packed"), lambda _: lambda job: job, ("large",)),
    Mutation("reconcile a job again at once, for ever", "converges", (Worker, "_requeue"), _at_once, ("multi-worker",)),
)
