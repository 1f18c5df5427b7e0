"""The restart scope: which replicas restart when one fails (spec.runPolicy.restartScope).

MultiWorkerMirrored, Mirrored, OneDevice   the gang: no task of a collective (all-reduce) survives another
trainer.mode predict                       the replica alone: the workers don't talk to each other
ParameterServer                            the replica alone. With a ps also the chief, which restores the variables
                                           from the checkpoint; with a worker whose node is lost also the chief, which
                                           waits on the dead connection for a quarter of an hour; with a chief that has
                                           waited in vain for a step also the workers, one of which it waited for
Custom                                     the gang; the replica alone where restartScope is Replica
restartScope Gang                          the gang, always

Whether it is the gang, `JobSpec.restarts_alone` says.
"""

from __future__ import annotations

from collections.abc import Sequence

from tfgpujob.api import JobSpec
from tfgpujob.api.strategies import Work
from tfgpujob.core.observed.members import ReplicaId
from tfgpujob.core.observed.plan import Plan
from tfgpujob.core.policies.restart.failure import NODE_LOST, Failure
from tfgpujob.names import Role
from tfgpujob_contract.exit_codes import ExitCode

_STARTING = "StartupDeadline"
"""The trainer's cause in its termination message for a start that took too long: a worker may still be reading data."""


def independent_failures(spec: JobSpec, failures: Sequence[Failure]) -> list[Failure]:
    """Without those that follow from another: a chief always fails when a parameter server does, and a worker ends its
    process because of either (exit code 160)."""
    roles = {failure.replica[0] for failure in failures} if _has_variables_on_ps(spec) else set()

    def follows(failure: Failure) -> bool:
        match failure.replica[0]:
            case Role.CHIEF:
                return Role.PS in roles
            case Role.WORKER:
                return failure.is_peer_failure and bool(roles & {Role.PS, Role.CHIEF})
        return False

    return [failure for failure in failures if not follows(failure)]


def replicas_to_restart(spec: JobSpec, plan: Plan, failures: Sequence[Failure]) -> frozenset[ReplicaId]:
    """The failed replicas, and those that can't continue without them."""
    replicas = {failure.replica for failure in failures}
    if _has_variables_on_ps(spec):
        roles = {role for failure in failures if (role := _goes_too(failure)) is not None}
        replicas |= {replica for replica in plan.members.required if replica[0] in roles}
    return frozenset(replicas)


def _has_variables_on_ps(spec: JobSpec) -> bool:
    return spec.traits.work is Work.PARAMETER_SERVERS


def _goes_too(failure: Failure) -> Role | None:
    """The role that restarts with the failed replica."""
    role = failure.replica[0]
    if role is Role.CHIEF and failure.exit_code == ExitCode.WATCHDOG and _STARTING not in failure.message:
        return Role.WORKER
    return Role.CHIEF if role is Role.PS or (role is Role.WORKER and failure.reason == NODE_LOST) else None
