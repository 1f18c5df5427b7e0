"""tests/bench: the cause of a disturbed round is named, the round is measured again, and no figure is lost to it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.bench import report
from tests.bench.disturbance import Pulse
from tests.bench.figures import OPERATOR
from tests.harness.process import SYSTEM_NAMESPACE
from tests.harness.resources import merged
from tests.unit.bench.rig import LEASE, NAMESPACES, SIZE, Run, connected, report_node, soon

from tfgpujob.kube.errors import ApiError

pytestmark = pytest.mark.slow

OURS = NAMESPACES[OPERATOR]
ROUNDS = ("warm-up", "throughput", "apply to 4 pods", "apply to 32 pods", "new job alone", "memory among many",
          "restart among many", "idle among many", "new job among many", "settling")  # fmt: skip
CREATING = frozenset(ROUNDS) - {"restart among many", "idle among many", "settling"}
"""Kinds of rounds in whose first try something is created."""
Strike = Callable[[Run, str], None]


def complete(run: Run) -> bool:
    """Every figure rests on as many rounds as on a quiet cluster."""
    values = report.summary(run.figures, SIZE)
    return all(one.rounds == one.wanted and (one.value is not None or not one.wanted) for one in values.values())


def refusing(error: ApiError, method: str = "POST") -> Strike:
    """The next request of this kind, once."""

    def strike(run: Run, _: str) -> None:
        def refuse(asked: str, _path: str) -> ApiError | None:
            if asked != method:
                return None
            run.live.front.refuse = lambda _method, _path: None
            return error

        run.live.front.refuse = refuse

    return strike


def delete_pod(run: Run, _: str) -> None:
    run.on_next_pod(OURS, lambda pod: run.live.server.delete("Pod", OURS, pod["metadata"]["name"], by="user"))


def reset_watches(run: Run, _: str) -> None:
    run.live.do(run.live.front.hang_up)


def forget_and_reset(run: Run, _: str) -> None:
    def strike() -> None:
        run.live.server.history.compact()
        run.live.front.hang_up()

    run.live.do(strike)


def lose_database(run: Run, _: str) -> None:
    """What the control plane asks fails, and is asked again; none of the benchmark's own requests is hit."""
    lost = ApiError(500, "InternalError", "etcdserver: request timed out")

    def refuse(_: str, path: str) -> ApiError | None:
        if path != "/api/v1/namespaces/default":
            return None
        run.live.front.refuse = lambda _method, _path: None
        return lost

    run.live.front.refuse = refuse


def lose_node(run: Run, _: str) -> None:
    ready = run.live.server.get("Node", "", "node-1")["status"]["conditions"][0]["status"]
    run.live.do(lambda: report_node(run.live, "Unknown" if ready == "True" else "True"))


def delete_namespace(run: Run, _: str) -> None:
    run.live.do(lambda: run.live.server.delete("Namespace", "", OURS, by="user"))


def end_operator(run: Run, _: str) -> None:
    run.stage.started[-1].ended = True


THROTTLED = ApiError(429, "TooManyRequests", "the server has received too many requests", 0.02)
WAYS: dict[str, tuple[Strike, frozenset[str], str]] = {
    "conflict": (refusing(ApiError(409, "Conflict", "somebody was first")), CREATING, "409 Conflict: somebody was"),
    "not found": (refusing(ApiError(404, "NotFound", "no such path")), CREATING, "404 NotFound"),
    "throttled": (refusing(THROTTLED), CREATING, "429 TooManyRequests"),
    "quota": (refusing(ApiError(403, "Forbidden", "exceeded quota: team")), CREATING, "exceeded quota: team"),
    "error": (refusing(ApiError(500, "InternalError", "etcdserver: timed out")), CREATING, "500 InternalError"),
    "no answer": (refusing(ApiError(0, "", "")), CREATING, "0 Unreachable"),
    "pod deleted": (delete_pod, frozenset(ROUNDS) - {"settling"}, "deleted"),
    "watch reset": (reset_watches, frozenset(ROUNDS), "the watch of pods was cut"),
    "watch too old": (forget_and_reset, frozenset(ROUNDS), "the watch of pods was cut"),
    "database": (lose_database, frozenset(ROUNDS), "the API server did not answer: 500 InternalError: etcdserver"),
    "node": (lose_node, frozenset(ROUNDS), "node node-1"),
    "namespace": (delete_namespace, frozenset(ROUNDS), f"namespace {OURS} was deleted"),
    "operator": (end_operator, frozenset(ROUNDS), "the operator has ended"),
}
SAMPLE = ("conflict", "pod deleted", "watch reset")
"""A request of its own, an object that it counts, a watch of its own: the other ways are deep."""


@pytest.mark.parametrize("way", [way if way in SAMPLE else pytest.param(way, marks=pytest.mark.deep) for way in WAYS])
async def test_a_disturbed_round_is_named_and_measured_again(way: str, run: Run) -> None:
    strike, rounds, reason = WAYS[way]
    run.strike = lambda what: strike(run, what)
    await run.play()
    named = {entry.partition(",")[0] for entry in run.disturbed if reason in entry}
    assert named == rounds, run.disturbed
    assert bool(run.figures.operators_ended) == (way == "operator")
    assert complete(run)


@pytest.mark.parametrize("code", [503, *(pytest.param(code, marks=pytest.mark.deep) for code in (429, 500, 0))])
async def test_a_request_whose_time_is_not_measured_is_sent_again(code: int, run: Run) -> None:
    refused = []

    def refuse(method: str, path: str) -> ApiError | None:
        """Each status and each delete, when it is sent for the first time."""
        if method not in {"PATCH", "DELETE"} or (method, path) in refused:
            return None
        refused.append((method, path))
        return ApiError(code, "Busy", "later")

    run.live.front.refuse = refuse
    await run.play()
    assert {method for method, _ in refused} == {"PATCH", "DELETE"}
    assert run.disturbed == []
    assert complete(run)


async def test_nothing_is_named_on_a_quiet_cluster(run: Run) -> None:
    await run.play()
    assert run.disturbed == []
    assert complete(run)
    assert {what: len(noise) for what, noise in run.figures.diary.noise.items()}["throughput"] == SIZE.rounds


@pytest.mark.deep
async def test_a_watch_that_ends_at_its_time_limit_disturbs_only_what_is_being_counted(run: Run) -> None:
    def end(what: str) -> None:
        if what in {"throughput", "idle among many"}:
            run.live.do(run.live.front.end_watches)

    run.strike = end
    await run.play()
    assert [entry.partition(",")[0] for entry in run.disturbed] in ([], ["throughput"])
    assert complete(run)


async def test_an_answer_that_takes_long_is_a_stall(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that waits for it may wait even longer before the next request."""
    async with connected() as cluster:
        pulse = Pulse(cluster)
        await pulse.beat()
        assert pulse.stalls == []
        monkeypatch.setattr("tests.bench.disturbance.STALL_SECONDS", 0.0)
        await pulse.beat()
        assert len(pulse.stalls) == 1
        assert pulse.stalls[0].startswith("the API server took ")


async def test_another_leader_is_named_and_waited_for(run: Run) -> None:
    def steal(what: str) -> None:
        if what == "throughput":
            run.live.do(lambda: take_lease(run, 1))

    run.strike = steal
    await run.play()
    assert len(run.disturbed) == 1
    assert run.disturbed[0].startswith("throughput, 1 of 2: the Lease was held by operator since ")
    assert complete(run)


@pytest.mark.deep
async def test_what_there_is_stays_when_another_keeps_the_lead(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.bench.leader.LEAD_SECONDS", 1.0)
    monkeypatch.setattr("tests.bench.measure.MENDS", 1)

    def steal(what: str) -> None:
        if what == "apply to 4 pods":
            run.live.do(lambda: take_lease(run, 3600))
            # The one that leads notices when it renews, which is in 2 s at the latest.
            soon(lambda: not run.live.operator.elector.leading, "the operator has lost its Lease")
            # There is no operator to create the pods that are waited for.
            monkeypatch.setattr("tests.bench.measure.CREATE_SECONDS", 0.0)

    run.strike = steal
    await run.play()
    assert run.disturbed[-1].startswith("given up: it doesn't lead after 1 s: the Lease is held by somebody-else")
    values = report.summary(run.figures, SIZE)
    assert values["jobs_per_s"].rounds == SIZE.rounds
    assert not report.holds(values)
    assert "apply_to_32_pods_vs_direct" in report.unjudged(values)


@pytest.mark.deep
async def test_what_never_passes_is_given_up_after_three_rounds(run: Run) -> None:
    quota = ApiError(403, "Forbidden", "exceeded quota: team")

    def refuse(what: str) -> None:
        always = what == "throughput"
        run.live.front.refuse = lambda method, path: (
            quota if always and path.endswith("/pods") and method == "POST" else None
        )

    run.strike = refuse
    await run.play()
    assert run.disturbed[-1].startswith("throughput: disturbed 3 times in a row, 0 of 2")
    values = report.summary(run.figures, SIZE)
    assert {name for name, one in values.items() if one.value is None and one.wanted} == {
        "jobs_per_s", "jobs_per_s_direct", "jobs_per_s_kube_job", "jobs_per_s_vs_kube_job", "jobs_per_s_vs_direct",
        "cpu_ms_per_job", "cpu_ms_per_job_whole_life", "writes_per_job",
    }  # fmt: skip
    assert not report.holds(values)


def take_lease(run: Run, seconds: int) -> None:
    lease = run.live.server.get("Lease", SYSTEM_NAMESPACE, LEASE)
    spec = {**lease["spec"], "holderIdentity": "somebody-else", "leaseDurationSeconds": seconds, "acquireTime": "now"}
    run.live.server.replace("Lease", SYSTEM_NAMESPACE, merged(lease, spec=spec), by="somebody-else")
