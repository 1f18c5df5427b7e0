"""Advice to the author of a valid spec that may not mean what it says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tfgpujob.api import JobSpec, Recovery, RestartScope, StallPolicy, gpus
from tfgpujob.api.rules.gpu import has_claims
from tfgpujob.api.run_policy import RunPolicy
from tfgpujob.core.observed.gang import without_effect
from tfgpujob.core.pods.in_place import supervises
from tfgpujob.names import Role

NO_CLAIM: Final = (
    "spec.trainer.output.claim is not set: checkpoints and the model go with their pods, and a restart begins from the "
    "start."
)
_MIG: Final = "/mig-"
_OTHER_MAKERS: Final = ("amd.com/", "gpu.intel.com/")


def advice(spec: JobSpec, gang: str = "", *, queued: bool = False) -> Iterator[str]:
    """One sentence for each thing in a valid spec that its author may not have meant.

    `gang`: the gang scheduler of its pods, as far as it is known; empty for none. `queued`: Kueue has admitted it.
    """
    if spec.traits.adds_chief and not spec.replica_specs.count(Role.CHIEF):
        yield f"A {spec.strategy} job needs a chief: one was added."
    if spec.trainer is not None and spec.trainer.output.claim is None:
        yield NO_CLAIM
    if spec.run_policy.restart_scope is RestartScope.REPLICA and not spec.restarts_alone:
        yield f"spec.runPolicy.restartScope: Replica has no effect: {spec.strategy} needs all its replicas anew."
    if spec.trainer is None:
        yield from _own_program(spec.run_policy, supervised=supervises(spec, Role.WORKER))
    yield from without_effect(spec, gang)
    for role, replica in spec.replica_specs.items():
        if not gpus(spec, role, replica) and has_claims(replica.training_container):
            yield (
                f"spec.replicaSpecs.{role}: its container gets devices by resource claims, and gpus is 0: TensorFlow "
                "sees none of them. If they are GPUs, set gpus to their number."
            )
    yield from _slices(spec)
    yield from _other_makers(spec)
    yield from _elastic(spec, gang)
    if spec.run_policy.spares and (gang or queued):
        placed = f"the pod group of {gang}" if gang else "Kueue"
        yield f"spec.runPolicy.spares has no effect: {placed} places all pods or none, and would wait for spares too."
    timeout, deadline = spec.run_policy.schedule_timeout_seconds, spec.run_policy.start_deadline_seconds
    if timeout is not None and timeout >= deadline:
        yield (
            f"spec.runPolicy.schedulingPolicy.scheduleTimeoutSeconds ({timeout} s) has no effect: "
            f"startDeadlineSeconds ({deadline} s) is over before."
        )


def _own_program(policy: RunPolicy, *, supervised: bool) -> Iterator[str]:
    if policy.stall_seconds:
        yield "spec.runPolicy.stallSeconds is of a program of your own: it must report its steps, by tfgpujob_trainer."
    elif policy.stall_policy is StallPolicy.RESTART:
        yield "spec.runPolicy.stallPolicy needs spec.trainer, or stallSeconds and a program that reports its steps."
    if policy.recovery is Recovery.IN_PLACE and not supervised:
        yield (
            "spec.runPolicy.recovery: InPlace has no effect: without spec.trainer it needs a command in each template, "
            "a restartPolicy other than Never, and strategy OneDevice, Mirrored or MultiWorkerMirrored."
        )


def _elastic(spec: JobSpec, gang: str) -> Iterator[str]:
    policy, deadline = spec.run_policy.elastic_policy, spec.run_policy.start_deadline_seconds
    field = "spec.runPolicy.elasticPolicy"
    if policy is None:
        return
    if not spec.elastic:
        yield f"{field} has no effect: set minReplicas or maxReplicas of the workers."
    elif gang:
        yield f"{field} has no effect: the pod group of {gang} places all pods or none."
    elif policy.shrink_after_seconds >= deadline:
        yield (
            f"{field}.shrinkAfterSeconds ({policy.shrink_after_seconds} s) has no effect on a start: "
            f"startDeadlineSeconds ({deadline} s) is over before."
        )
    if policy.grow_after_seconds is not None and spec.workers_come_and_go:
        yield f"{field}.growAfterSeconds has no effect: a worker joins as soon as it has a node, and stops nobody."
    elif policy.grow_after_seconds is not None and spec.run_policy.recovery is not Recovery.IN_PLACE:
        yield f"{field}.growAfterSeconds has no effect without spec.runPolicy.recovery: InPlace."


def _slices(spec: JobSpec) -> Iterator[str]:
    """A CUDA process enumerates one MIG slice, however many its container holds."""
    for role, replica in spec.replica_specs.items():
        count = gpus(spec, role, replica)
        if count > 1 and spec.gpu.claim is None and _MIG in spec.gpu.resource_name:
            yield (
                f"spec.replicaSpecs.{role}: {count} MIG slices a pod, of which a process of CUDA sees one. Use one "
                "slice a pod and more replicas, or a larger profile in spec.gpu.resourceName."
            )


def _other_makers(spec: JobSpec) -> Iterator[str]:
    """The trainer's image has TensorFlow for NVIDIA's GPUs; with others its programs end, since they see none."""
    resource = spec.gpu.resource_name
    if spec.trainer is None or spec.image or spec.gpu.claim is not None or not resource.startswith(_OTHER_MAKERS):
        return
    roles = [
        str(role)
        for role, replica in spec.replica_specs.items()
        if gpus(spec, role, replica) and not replica.training_container.get("image")
    ]
    if roles:
        yield (
            f"spec.gpu.resourceName: the trainer's image has TensorFlow for NVIDIA's GPUs, and none for {resource}. "
            f"Set spec.image to one of yours that has both ({', '.join(roles)})."
        )
