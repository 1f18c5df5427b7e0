"""spec.gpu: GPUs and the processes on them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tfgpujob.api.base import value_at
from tfgpujob.api.invalid import Invalid
from tfgpujob.api.rules.rule import Job, JobRule, Refusal, rules_of
from tfgpujob.api.spec import JobSpec, ReplicaSpec
from tfgpujob.api.strategies import Work
from tfgpujob.api.template import PodTemplate, part
from tfgpujob.names import Role

_PLAIN: Final = re.compile(r"[0-9]{1,18}")


def gpus(spec: JobSpec, role: Role, replica: ReplicaSpec) -> int:
    """GPUs of one pod: the role's own number, else those of spec.gpu.claim or spec.gpu.perReplica, else 1 where the
    strategy computes.

    A ps and a ParameterServer chief only hold and move variables, and a Custom program is unknown: they get none unless
    they request them.
    """
    if replica.gpus is not None:
        return replica.gpus
    if role in spec.traits.no_gpus:
        return 0
    if spec.gpu.claim is not None:
        return spec.gpu.claim.count or 1
    if spec.gpu.per_replica is not None:
        return spec.gpu.per_replica
    return 0 if _is_unknown_program(spec) else 1


def _is_unknown_program(spec: JobSpec) -> bool:
    return spec.traits.work is Work.OWN_PROGRAM and spec.trainer is None


def takes_claims(template: PodTemplate) -> bool:
    """True if the template gives the training container devices by resource claims (DRA) of its own, which may be its
    GPUs."""
    _, container = template.spec.training_container() or ("", None)
    return container is not None and has_claims(container.model_extra or {})


def has_claims(container: Mapping[str, Any]) -> bool:
    """The same for the training container."""
    claims = value_at(container, "resources", "claims")
    return isinstance(claims, list) and bool(claims)


def processes(spec: JobSpec, role: Role, replica: ReplicaSpec) -> int:
    """TensorFlow tasks of one pod: gpus × processesPerGpu of a worker, or one that sees all the pod's GPUs."""
    if spec.gpu.processes_per_gpu is None or role is not Role.WORKER:
        return 1
    return max(1, gpus(spec, role, replica) * spec.gpu.processes_per_gpu)


def replicas_in_sync(spec: JobSpec) -> int:
    """Units that each compute a part of every global batch: a GPU, a process where several share a GPU, or a pod
    without GPUs.
    """
    return sum(
        pods.replicas * max(1, gpus(spec, role, pods), processes(spec, role, pods))
        for role, pods in spec.replica_specs.items()
        if role in {Role.CHIEF, Role.WORKER}
    )


def several_processes(job: Job) -> bool:
    """True if some pod has more than one TensorFlow process."""
    return any(processes(job.spec, role, replica) > 1 for role, replica in job.spec.replica_specs.items())


def plain_count(limit: Any) -> int | None:
    """A resource's limit as a number of GPUs. None for forms that are left to the API server, such as 1e0."""
    return int(limit) if _PLAIN.fullmatch(str(limit)) else None


def _claims(job: Job) -> Iterator[Invalid]:
    for role, template in job.templates.items():
        replica = getattr(job.spec.replica_specs, role)
        gpu = job.spec.gpu
        said = replica.gpus is not None or gpu.per_replica is not None or gpu.claim is not None
        if takes_claims(template) and not said and gpus(job.spec, role, replica):
            problem = "is not set, and the container gets devices by resource claims, which may be its GPUs"
            fix = "set it to the number of GPUs that the claims give to a pod, 0 if they are none"
            yield Invalid(f"spec.replicaSpecs.{role}.gpus", problem, fix)


def _template_limit(job: Job) -> Iterator[Invalid]:
    spec, resource = job.spec, job.spec.gpu.resource_name
    for role, template in job.templates.items():
        replica = getattr(spec.replica_specs, role)
        if spec.gpu.claim is not None:
            continue  # then it may have none: rules/claim.py
        if _is_unknown_program(spec) and replica.gpus is spec.gpu.per_replica is None:
            continue  # the program is unknown: only its own limit counts
        place, container = template.spec.training_container() or ("", None)
        limit = plain_count(part(container, "resources", "limits", resource)) if container else None
        count = gpus(spec, role, replica)
        if limit is not None and limit != count:
            field = f"spec.replicaSpecs.{role}.template.spec.{place}.resources.limits[{resource}]"
            fix = f"remove it, and set spec.replicaSpecs.{role}.gpus to what you want"
            yield Invalid(field, f"is {limit}, but gpus, gpu.perReplica or their default ask for {count}", fix)


def _processes_need_trainer(job: Job) -> Iterator[Invalid]:
    if job.spec.trainer is None and several_processes(job):
        fix = "remove it, and ask for more workers where the device plugin shares each GPU"
        yield Invalid("spec.gpu.processesPerGpu", "only the bundled trainer starts several processes in a pod", fix)


def _processes_strategy(job: Job) -> Iterator[Invalid]:
    spec = job.spec
    if spec.trainer is None or not several_processes(job):
        return
    if not spec.predicts and not spec.traits.several_processes:
        yield Invalid(
            "spec.gpu.processesPerGpu",
            f"{spec.strategy} trains in one process a pod",
            "use MultiWorkerMirrored, under which each process is a worker, or remove it",
        )
    if spec.replica_specs.count(Role.CHIEF):
        yield Invalid(
            "spec.replicaSpecs.chief",
            "a chief is one process, and the workers' pods have several",
            "remove it: worker 0 then does its work",
        )


def _processes_memory(job: Job) -> Iterator[Invalid]:
    gpu = job.spec.gpu
    shared = several_processes(job) and (gpu.processes_per_gpu or 1) > 1
    if job.spec.trainer is not None and shared and gpu.memory.growth is False and gpu.memory.limit_mib is None:
        yield Invalid(
            "spec.gpu.memory",
            f"the first of {gpu.processes_per_gpu} processes on a GPU takes all its memory",
            "set limitMiB, of which each process takes as much, or remove growth",
        )


_PODS_GPUS = "a pod's GPUs follow from role, strategy and two fields: that table stands in one place"

RULES = rules_of(
    Refusal(
        "gpu.memory",
        of=lambda job: job.spec.gpu.memory,
        breaks=lambda memory: bool(memory.growth) and memory.limit_mib is not None,
        at="spec.gpu.memory",
        cel="!has(self.growth) || !self.growth || !has(self.limitMiB)",
        problem="growth and limitMiB are both set",
        fix="keep one of them: TensorFlow refuses a limit on memory that grows",
    ),
    JobRule(
        "gpu.template-limit",
        _template_limit,
        only_python=_PODS_GPUS,
    ),
    JobRule("gpu.claims", _claims, only_python=_PODS_GPUS),
    JobRule(
        "gpu.processes-need-trainer",
        _processes_need_trainer,
        only_python=_PODS_GPUS,
    ),
    JobRule("gpu.processes-strategy", _processes_strategy, only_python=_PODS_GPUS),
    JobRule("gpu.processes-memory", _processes_memory, only_python=_PODS_GPUS),
)
