"""TF_CONFIG names every task of a job in one environment variable, whose size Linux limits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tfgpujob.api.invalid import Invalid
from tfgpujob.api.rules.gpu import processes
from tfgpujob.api.rules.rule import Job, JobRule
from tfgpujob.api.strategies import Cluster
from tfgpujob.names import PORT, Role, host

MOST_BYTES: Final = 128 << 10
"""MAX_ARG_STRLEN: of NAME=VALUE and the byte that ends it. A process with a longer one is not started."""
_REST: Final = 128
"""Bytes of everything but the addresses: names, task and brackets."""


def _size(job: Job) -> Iterator[Invalid]:
    spec = job.spec
    if spec.traits.cluster is Cluster.NONE or spec.predicts:
        return
    size = _REST
    for role, replica in spec.replica_specs.items():
        if role is Role.EVALUATOR:
            continue
        pods, each = spec.most_pods(role, replica), processes(spec, role, replica)
        longest = f'"{host(job.name, role, pods, job.namespace)}:{PORT + each}",'
        size += pods * each * len(longest)
    if size > MOST_BYTES:
        yield Invalid(
            "spec.replicaSpecs",
            f"TF_CONFIG, which names every process, would have {size:,} bytes, and Linux starts no program with more "
            f"than {MOST_BYTES:,} in one variable",
            "use fewer replicas, spares or processesPerGpu, or a shorter metadata.name: each address has it twice",
        )


RULES = (JobRule("tf-config.size", _size, only_python="the number of processes follows from role, strategy and gpu"),)
