"""The promises of the design, checked at every revision of the server. A broken one is a line of text.

A promise is a function with its name, in the module of what it is about: it is given one change and the truth, and says
what is wrong. `broken` lists that, with the promise's name in front.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.harness.apiserver import ApiServer
from tests.harness.history import Change
from tests.harness.memory_cluster import LATE_MARK
from tests.harness.promises import claims, intent, leader, pods, queues, status, writes
from tests.harness.promises.truth import OPERATOR, Truth
from tests.harness.resources import controller

from tfgpujob import names

KINDS = ("Pod", "Service", "NetworkPolicy", "PodGroup", "PersistentVolumeClaim", "Workload")
"""Kinds of objects that belong to a job."""
Promise = Callable[[Change, Truth], Iterator[str]]
OF_PODS: tuple[Promise, ...] = (pods.one_object_per_replica, pods.addresses_agree)
OF_STATUS: tuple[Promise, ...] = (
    status.terminal_is_final,
    status.generation_is_observed,
    status.outcome_is_true,
    status.the_end_counts_no_pod_that_goes,
    status.spares_stay_spare,
    status.failures_are_counted_once,
    status.stalls_are_real,
    status.only_idle_jobs_are_suspended,
    status.progress_is_seldom,
    status.time_adds_up,
)
OF_COPIED_STATUS: tuple[Promise, ...] = (status.terminal_is_final,)
"""For a job that runs in another cluster: MultiKueue writes its status, which starts over with each further job that it
creates there."""
OF_LEASES: tuple[Promise, ...] = (leader.one_leader,)
OF_WRITES: tuple[Promise, ...] = (
    writes.touches_only_its_own,
    writes.deletes_carry_the_uid,
    writes.isolation_comes_before_pods,
    writes.gang_comes_before_pods,
    claims.claims_stay_the_replicas,
    claims.only_claims_that_are_to_go_have_an_owner,
)
"""For writes of operators, even for those that arrive late."""
OF_WRITES_IN_TIME: tuple[Promise, ...] = (
    pods.rounds_do_not_mix,
    writes.nothing_for_a_job_that_goes,
    claims.claims_come_before_pods,
    intent.creates_follow_persisted_intent,
    intent.deletes_follow_persisted_intent,
    intent.resizes_delete_nobody_who_trains,
    intent.servers_stay_while_their_chief_saves,
    intent.force_is_the_last_resort,
    queues.admission_comes_before_pods,
    queues.quota_goes_after_pods,
)
"""For writes of operators, except those that arrive after they were given up long ago."""
ALL = (*OF_PODS, *OF_STATUS, *OF_LEASES, *OF_WRITES, *OF_WRITES_IN_TIME)


class Promises:
    """Watches a server from its first revision on. Operators sign their requests with a name `operator…`."""

    def __init__(self, server: ApiServer) -> None:
        self.truth = Truth(server)
        self.broken: list[str] = []
        server.observers.append(self._check)

    def _check(self, change: Change) -> None:
        self.truth.note(change)
        for promise in _concerned(change):
            for problem in promise(change, self.truth):
                line = f"{promise.__name__}: {problem} [revision {change.revision}: {change.verb} by {change.by}]"
                self.broken.append(line)

    def orphans(self) -> list[str]:
        """What belongs to a job that is gone, or of whose name there is another one now, and pod groups of jobs that
        have nothing to be scheduled. Asked for at the end."""
        server = self.truth.server
        jobs = {job["metadata"]["uid"]: job for job in server.select(names.KIND)}
        over = {uid for uid, job in jobs.items() if intent.is_over(job)}
        found = []
        for kind in KINDS:
            for obj in server.select(kind):
                owner = controller(obj)
                alive = jobs.keys() - over if kind == "PodGroup" else jobs.keys()
                if owner and owner["kind"] == names.KIND and owner["uid"] not in alive:
                    found.append(f"orphans: {kind} {obj['metadata']['name']}")
        return found


def _concerned(change: Change) -> Iterator[Promise]:
    late = change.by.endswith(LATE_MARK)
    if change.kind == "Pod":
        yield from OF_PODS
    if change.kind == names.KIND and change.type == "MODIFIED" and change.by != "user":
        elsewhere = change.object["spec"].get("managedBy") == names.MULTIKUEUE
        yield from OF_COPIED_STATUS if elsewhere else OF_STATUS
    if change.kind == "Lease" and change.type == "MODIFIED" and not late:
        yield from OF_LEASES
    if change.by.startswith(OPERATOR) and change.kind in (*KINDS, names.KIND):
        yield from OF_WRITES
        if not late:
            yield from OF_WRITES_IN_TIME
