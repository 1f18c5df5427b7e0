"""A whole cluster for one run: the server, the other actors, the operators, and the promises that watch them."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence

from tests.harness.actors import GarbageCollector, Kubelet, Scheduler
from tests.harness.apiserver import ApiServer
from tests.harness.faults import Injector
from tests.harness.feed import Blindfold
from tests.harness.history import Change
from tests.harness.kueue import Kueue
from tests.harness.leaders import Leaders, environment
from tests.harness.multikueue import MultiKueue
from tests.harness.process import CONFIG, RESYNC, SYSTEM_NAMESPACE, OperatorProcess, isolating, with_gangs, with_kueue
from tests.harness.promises import Promises, bounds
from tests.harness.promises.truth import PEER_FAILURE, attempt_of
from tests.harness.resources import Object, controller
from tests.harness.vtime import VirtualLoop

from tfgpujob import names
from tfgpujob.core.observed.snapshot import Config
from tfgpujob_contract.variables import Variable

RESTART = 1.0
"""Seconds until the kubelet has restarted an operator that died."""
WORK = 5.0
"""Seconds that a gang trains once it is complete."""
GOODBYE = 0.5
"""Seconds after which a stopping pod has reported the end of its processes to its gang."""
UNHEARD = 5.0
"""Seconds after which a leader misses a pod whose node is lost; one that is gone it misses at once."""
SILENT = 6.0
"""Seconds after that, in which the processes of that pod end, if they have not (supervise/rounds.py). Both are shorter
than in reality, so that this wait is not taken for the end of a story."""
STILL = 40.0
"""Seconds after which a run that hangs counts as standing still."""
NOT_STATE = frozenset({"Lease", "Event"})

Ends = Mapping[str, Sequence[int | None]]
"""How replicas end, by `role-index` or `role`: the exit code of the 1st, 2nd, … complete run of the gang.

A gang runs again whenever it is complete again, be it the whole gang or one restarted replica.

The last code repeats; None runs forever. Default: parameter servers, and their workers, run forever, all others exit 0.
"""


class World:
    """Everything but the operator acts by itself; scenarios and tests add what people do."""

    def __init__(self, ends: Ends, injector: Injector, blindfold: Blindfold) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.loop = loop
        self.server = ApiServer(loop.wall)
        self.server.create("Namespace", "", {"metadata": {"name": SYSTEM_NAMESPACE}}, by="setup")
        self.promises = Promises(self.server)
        self.kubelet = Kubelet(self.server)
        self.scheduler = Scheduler(self.server)
        self.collector = GarbageCollector(self.server)
        self.kueue = Kueue(self.server)
        for actor in (self.scheduler, self.kubelet, self.collector):
            actor.watch()
        self.kubelet.on_ready = self._one_more_is_ready
        self.kubelet.last_words = self._last_words
        self.injector = injector
        self.blindfold = blindfold
        self.config: Config = CONFIG
        self.resync: float = RESYNC
        """Seconds between two lists of everything."""
        self.operators: dict[str, OperatorProcess] = {}
        self.lost: set[str] = set()
        """Operators that are not started again."""
        self.behind_after_crash = 0
        """How many revisions old the first lists of a restarted operator process are."""
        self.lags: Mapping[str, float] = {}
        self.marks: dict[Callable[[World], bool], float] = {}
        """When a waiting step of the script began to wait."""
        self.complaints: list[str] = []
        self.changed = asyncio.Event()
        self.last_change = 0.0
        self.work = WORK
        self.stuck: frozenset[str] = frozenset()
        self.unused: frozenset[str] = frozenset()
        """Replicas, by `role-index`, that wait for their data for ever in a run that would not end otherwise."""
        self._restarted: dict[str, int] = {}
        self._up_since: dict[str, float] = {}
        self._ends = ends
        self._gangs: set[frozenset[str]] = set()
        self._run_count: dict[str, int] = {}
        self.leaders = Leaders(gang=self._workers_up, begins=self._run, leaves=self._leave, trains=self._train)
        self.server.observers.append(self._notice)

    def isolate_jobs(self) -> None:
        """Every job gets a NetworkPolicy."""
        self.config = isolating(self.config)
        self.promises.truth.isolated = True

    def schedule_in_gangs(self) -> None:
        """Every job gets a pod group."""
        self.config = with_gangs(self.config)
        self.promises.truth.in_gangs = True

    def wait_in_queues(self) -> None:
        """Every job that names one."""
        self.config = with_kueue(self.config)
        self.promises.truth.in_queues = True
        self.kueue.watch()
        MultiKueue(self.server, here="default", there="elsewhere").watch()

    def spawn(self, identity: str, behind: int = 0) -> OperatorProcess:
        """Start an operator process; when it dies, the kubelet starts it again."""
        process = OperatorProcess(
            self.server,
            self.injector,
            self.blindfold,
            identity,
            config=self.config,
            fetch_progress=self.answer,
            put_workers=self.put_workers,
            on_death=lambda: self._died(identity),
            resync=self.resync,
        )
        bounds.Bounds(process.operator, self.promises.broken.append)
        self.operators[identity] = process
        process.feed.delay = self.lags.get(identity, process.feed.delay)
        process.start(behind=behind)
        return process

    def _old_leaders(self, holder: str) -> list[str]:
        """Who else still takes itself for the leader. A process that stands still does nothing, and learns of it."""
        now = self.loop.time()
        awake = (process for process in self.operators.values() if process.alive and process.cluster.paused_until < now)
        leading = [process.identity for process in awake if process.operator.elector.leading]
        return [f"one_leader: {name} still leads, {holder} has the Lease" for name in leading if name != holder]

    def add_nodes(self, nodes: Sequence[str]) -> None:
        """These are all the nodes there are."""
        self.scheduler.nodes = list(nodes)
        for name in nodes:
            self.server.create("Node", "", {"metadata": {"name": name}}, by="setup")
            self._report(name, "True", by="setup")

    def lose_node(self, name: str) -> None:
        """It falls silent, and the node controller says so."""
        self.kubelet.lost.add(name)
        for pod in self.server.select("Pod", "default"):
            if pod["spec"].get("nodeName") == name:
                self.loop.call_later(UNHEARD + SILENT, self._one_is_silent, pod)
        self.scheduler.nodes.remove(name)
        self._report(name, "Unknown", by="node-controller")

    def _report(self, node: str, ready: str, by: str) -> None:
        status = {"conditions": [{"type": "Ready", "status": ready}]}
        self.server.replace("Node", "", {**self.server.get("Node", "", node), "status": status}, status=True, by=by)

    async def until(self, condition: Callable[[], bool], within: float) -> bool:
        """Wait for something to be true of the server; False when it is not in time."""
        deadline = self.loop.time() + within
        while not condition():
            self.changed.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self.changed.wait()
            except TimeoutError:
                return condition()
        return True

    def pods(self, job: str, namespace: str = "default") -> list[Object]:
        """The pods that carry the job's label."""
        return self.server.select("Pod", namespace, f"{names.LABEL_JOB_NAME}={job}")

    def runs(self, job_uid: str) -> int:
        """How many times a gang of this job was complete."""
        return self._run_count.get(job_uid, 0)

    async def answer(self, ip: str, token: str) -> bytes | None:
        """GET /progress of a pod; its address is its name. A pod that is to hang has made no progress since it was
        up.
        """
        del token
        pod = self.server.objects.get(("Pod", "default", ip))
        if pod is None or (pod.get("status") or {}).get("phase") != "Running":
            return None
        owner, meta = controller(pod), pod["metadata"]
        assert owner is not None
        up = int(self.loop.time() - self._up_since[meta["uid"]])
        now = int(self.loop.wall().timestamp() * 1000)
        hangs = bool(self.stuck) and self._code(pod, self.runs(owner["uid"]), "") is None
        if hangs and up >= STILL:
            self.promises.truth.stood_still(owner["uid"], meta["labels"][names.LABEL_ATTEMPT])
        unused = "-".join(_replica(pod)) in self.unused
        if {"worker-0", "worker-1"} <= self.unused and up >= STILL:
            self.promises.truth.unused.add(owner["uid"])
        report = {
            "phase": "training",
            "step": 3 if hangs else up,
            "steps": 1000,
            "idleSeconds": up if hangs else 0,
            "waitsForPeers": hangs and "-".join(_replica(pod)) not in self.stuck,
            "lastCheckpoint": {"step": 2, "directory": "/output/checkpoints/step-2"},
            "ledger": {"until": now, "parts": {"useful": up * 1000}, "reached": up},
            "inPlaceRestarts": self._restarted.get(meta["uid"], 0),
            "gpuUsePercent": [0 if unused else 90],
            "gpuIdleSeconds": up if unused else 0,
        }
        return json.dumps(report).encode()

    def restart_in_place(self, pod_name: str, times: int) -> None:
        """So often the pods of the job that this one leads have started their processes again by now."""
        pod = self.server.get("Pod", "default", pod_name)
        owner, uid = controller(pod), pod["metadata"]["uid"]
        assert owner is not None
        self._restarted[uid] = times
        self.promises.truth.restarted_in_place(owner["uid"], uid, times)

    def _last_words(self, pod: Object) -> str:
        times = self._restarted.get(pod["metadata"]["uid"], 0)
        return json.dumps({"inPlaceRestarts": times}) if times else ""

    async def put_workers(self, ip: str, token: str, workers: int) -> tuple[int, bytes] | None:
        """PUT /workers of a leader; its address is its name."""
        del token
        pod = self.server.objects.get(("Pod", "default", ip))
        up = pod is not None and (pod.get("status") or {}).get("phase") == "Running"
        return self.leaders.put_workers(pod, workers) if pod is not None and up else None

    def _workers_up(self, leader: Object) -> dict[int, Object]:
        owner, attempt = controller(leader), leader["metadata"]["labels"][names.LABEL_ATTEMPT]
        assert owner is not None
        pods = [pod for pod in self.pods(owner["name"]) if self._is_up(pod, owner["uid"], attempt)]
        return {int(_replica(pod)[1]): pod for pod in pods if _replica(pod)[0] == "worker"}

    def _leave(self, pod: Object, code: int) -> None:
        self._end(pod["metadata"]["uid"], code, ())

    def _train(self, leader: Object, workers: int) -> None:
        self.promises.truth.rounds[attempt_of(leader)] = workers

    def _notice(self, change: Change) -> None:
        if change.kind == "Lease":
            self.promises.broken += self._old_leaders(change.object["spec"].get("holderIdentity", ""))
        if change.kind not in NOT_STATE:
            self.last_change = self.loop.time()
        self.changed.set()
        if change.kind == "Service" and change.type == "ADDED":
            for pod in self.pods(change.object["metadata"]["name"], change.object["metadata"]["namespace"]):
                self._one_more_is_ready(pod)

        if change.kind == "Pod" and _deletion_begins(change):
            self.loop.call_later(GOODBYE, self._one_says_goodbye, change.object["metadata"]["uid"])
        elif change.kind == "Pod" and (change.object.get("status") or {}).get("reason") == "Evicted":
            self._one_says_goodbye(change.object["metadata"]["uid"])
        elif change.kind == "Pod" and change.type == "DELETED":
            self.loop.call_later(SILENT, self._one_is_silent, change.object)

    def _one_is_silent(self, pod: Object) -> None:
        """Its leader gives it up, if there is one that has not heard of it."""
        leader = self._leader_of(pod)
        if leader is not None and not self.kubelet.cut_off(leader):
            self.leaders.fell_silent(leader, pod)

    def _one_waits_no_longer(self, pod: Object) -> None:
        """If it is the leader in the place of another, and has begun no round yet."""
        leader = self._leader_of(pod)
        if leader is not None and leader["metadata"]["uid"] == pod["metadata"]["uid"]:
            self.leaders.gave_up_waiting(leader)

    def _one_says_goodbye(self, uid: str) -> None:
        """As the trainer's supervisor does once its processes have ended, if it had the time to end them."""
        pod = self.kubelet.find(uid)
        leader = self._leader_of(pod) if pod is not None and not self.kubelet.cut_off(pod) else None
        if pod is not None and leader is not None:
            self.leaders.said_goodbye(leader, pod)

    def _died(self, identity: str) -> None:
        if identity not in self.lost:
            self.loop.call_later(RESTART, self.spawn, identity, self.behind_after_crash)

    def _one_more_is_ready(self, pod: Object) -> None:
        """A gang trains when all its tasks are up and the service gives them their names.

        `WORK` seconds later each ends as its script says.
        """
        self._up_since.setdefault(pod["metadata"]["uid"], self.loop.time())
        owner = controller(pod)
        job = self.server.objects.get((names.KIND, pod["metadata"]["namespace"], owner["name"])) if owner else None
        if owner is None or job is None or job["metadata"]["uid"] != owner["uid"]:
            return
        if environment(pod, Variable.RECOVERY_JOINS):
            self._one_more_joins(pod)
            self.loop.call_later(SILENT, self._one_waits_no_longer, pod)
            return
        uid, attempt = owner["uid"], pod["metadata"]["labels"].get(names.LABEL_ATTEMPT)
        counts = ((job.get("status") or {}).get("plan") or {}).get("counts") or {}
        up = [p for p in self.pods(owner["name"], pod["metadata"]["namespace"]) if self._is_up(p, uid, attempt)]
        gang = [p for p in up if not environment(p, Variable.RECOVERY_JOINS)]
        service = self.server.objects.get(("Service", pod["metadata"]["namespace"], owner["name"]))
        named_by = controller(service) if service else None
        named = named_by is not None and named_by["uid"] == uid
        members = frozenset(p["metadata"]["uid"] for p in gang)
        wanted = {(role, str(index)) for role, count in counts.items() for index in range(count)}
        missing = wanted - {_replica(p) for p in gang} - self._done_with(job, attempt)
        if not gang or not wanted or not named or missing or members in self._gangs:
            self._one_more_joins(pod)
            return
        self._gangs.add(members)
        self._run(gang)

    def _one_more_joins(self, pod: Object) -> None:
        """It is up, and says so to the leader of its gang."""
        leader = self._leader_of(pod)
        if leader is not None:
            self.leaders.look(leader)

    def _leader_of(self, pod: Object) -> Object | None:
        """Worker 0 of its attempt, if that is up and may have another number of workers."""
        owner = controller(pod)
        name = f"{owner['name']}-worker-0" if owner is not None else ""
        leader = self.server.objects.get(("Pod", pod["metadata"]["namespace"], name))
        if leader is None or controller(leader) is None or attempt_of(leader) != attempt_of(pod):
            return None
        if not self._is_up(leader, *attempt_of(leader)):
            return None
        return leader if environment(leader, Variable.RECOVERY_RESIZE) else None

    def _run(self, gang: Sequence[Object]) -> None:
        """They train from now on."""
        owner = controller(gang[0])
        assert owner is not None
        uid, job = owner["uid"], self.server.get(names.KIND, gang[0]["metadata"]["namespace"], owner["name"])
        self._run_count[uid] = run = self._run_count.get(uid, 0) + 1
        if environment(gang[0], Variable.RECOVERY_RESIZE):
            workers = {int(_replica(member)[1]): member for member in gang if _replica(member)[0] == "worker"}
            self._train(gang[0], max(workers) + 1)
            self.leaders.begun(workers[0], workers)
        self.works(job, gang, run)

    def works(self, job: Object, gang: Sequence[Object], run: int) -> None:
        """These pods of the job do their work, which comes to its end."""
        for number, member in enumerate(gang):
            code = self._code(member, run, job["spec"].get("strategy"))
            if code is not None:
                together = job["spec"].get("strategy") == "MultiWorkerMirrored"
                uids = tuple(p["metadata"]["uid"] for p in gang) if together else ()
                self.loop.call_later(self.work + 0.01 * number, self._end, member["metadata"]["uid"], code, uids)

    def _done_with(self, job: Object, attempt: str) -> set[tuple[str, str]]:
        """Replicas that are not waited for any more: they succeeded, or are evaluators that failed."""
        by_role = (job.get("status") or {}).get("replicaStatuses") or {}
        through = {(role, str(i)) for role, counts in by_role.items() for i in counts.get("succeededIndexes") or ()}
        for pod in self.pods(job["metadata"]["name"], job["metadata"]["namespace"]):
            phase, role = pod["status"]["phase"], pod["metadata"]["labels"].get(names.LABEL_REPLICA_TYPE)
            current = pod["metadata"]["labels"].get(names.LABEL_ATTEMPT) == attempt
            if current and (phase == "Succeeded" or (phase == "Failed" and role == "evaluator")):
                through.add(_replica(pod))
        return through

    def _is_up(self, pod: Object, uid: str, attempt: str) -> bool:
        owner = controller(pod)
        ours = owner is not None and owner["uid"] == uid
        same = pod["metadata"]["labels"].get(names.LABEL_ATTEMPT) == attempt
        return ours and same and (pod.get("status") or {}).get("phase") == "Running"

    def _code(self, pod: Object, run: int, strategy: str) -> int | None:
        labels = pod["metadata"]["labels"]
        role, index = labels[names.LABEL_REPLICA_TYPE], labels[names.LABEL_REPLICA_INDEX]
        serves = role == "ps" or (role == "worker" and strategy == "ParameterServer")
        codes = self._ends.get(f"{role}-{index}", self._ends.get(role, (None if serves else 0,)))
        return codes[min(run, len(codes)) - 1]

    def _end(self, uid: str, code: int, gang: tuple[str, ...]) -> None:
        pod = self.kubelet.find(uid)
        if pod is None or self.kubelet.cut_off(pod) or (pod.get("status") or {}).get("phase") != "Running":
            return
        peers = [self.kubelet.find(peer) for peer in gang]
        whole = all(peer is not None and peer["status"]["phase"] != "Failed" for peer in peers)
        if not whole and not code and self._waits(pod):
            return
        self.kubelet.finish(pod, code if whole or code else PEER_FAILURE)

    def _waits(self, pod: Object) -> bool:
        """Whether its gang waits for another pod in the place of one that is lost, and it with that."""
        return bool(environment(pod, Variable.RECOVERY_RESIZE))


def _deletion_begins(change: Change) -> bool:
    before = (change.old or {"metadata": {}})["metadata"]
    return "deletionTimestamp" in change.object["metadata"] and "deletionTimestamp" not in before


def _replica(pod: Object) -> tuple[str, str]:
    labels = pod["metadata"]["labels"]
    return labels.get(names.LABEL_REPLICA_TYPE, ""), labels.get(names.LABEL_REPLICA_INDEX, "")


class Complaints(logging.Handler):
    """An exception inside the operator is a finding, even if a retry hides it."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world
        self._logger = logging.getLogger("tfgpujob")

    def attach(self) -> Complaints:
        """From here on nothing but errors is logged, and only here: a run leaves thousands of lines."""
        self._logger.addHandler(self)
        self._logger.setLevel(logging.ERROR)
        self._logger.propagate = False
        return self

    def detach(self) -> None:
        """Silences the logger: what the tasks of a finished run log at their end does not matter."""
        self._logger.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else ""
        self._world.complaints.append(f"no_exceptions: {record.getMessage()}: {error!r}")
