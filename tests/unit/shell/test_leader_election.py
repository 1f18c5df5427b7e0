"""Never two leaders, also when the API server hangs; and the next one does not wait after a clean stop."""

import asyncio
import logging
from datetime import UTC, datetime, timedelta

import pytest
from tests.harness.scripted import ScriptedCluster
from tests.harness.vtime import run, virtual

from tfgpujob.core.observed.snapshot import Object
from tfgpujob.kube.errors import ApiError
from tfgpujob.shell.leader_election import LEASE_SECONDS, RENEW_DEADLINE, RETRY_SECONDS, LeaderElector

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class Hall:
    """A Lease, and who works when."""

    def __init__(self) -> None:
        self.cluster = ScriptedCluster()
        self.working: set[str] = set()
        self.most = 0
        self.began: list[tuple[str, float]] = []
        self.ended: list[tuple[str, float]] = []

    def join(self, identity: str, skew: float = 0.0, cluster: ScriptedCluster | None = None) -> asyncio.Task[None]:
        loop = asyncio.get_running_loop()
        elector = LeaderElector(
            cluster or self.cluster,
            namespace="ns",
            name="lease",
            identity=identity,
            now=lambda: EPOCH + timedelta(seconds=loop.time() + skew),
            beat=lambda: None,
        )

        async def work() -> None:
            self.working.add(identity)
            self.most = max(self.most, len(self.working))
            self.began.append((identity, loop.time()))
            try:
                await asyncio.Event().wait()
            finally:
                self.working.discard(identity)
                self.ended.append((identity, loop.time()))

        return asyncio.create_task(elector.run(work))


class Partitioned(ScriptedCluster):
    """The same Lease, over a network that can hang."""

    def __init__(self, behind: ScriptedCluster) -> None:
        super().__init__()
        self.behind = behind
        self.hangs = False

    async def _pass(self) -> None:
        if self.hangs:
            await asyncio.Event().wait()

    async def get_lease(self, namespace: str, name: str) -> Object:
        await self._pass()
        return await self.behind.get_lease(namespace, name)

    async def create_lease(self, namespace: str, body: Object) -> Object:
        await self._pass()
        return await self.behind.create_lease(namespace, body)

    async def replace_lease(self, namespace: str, body: Object) -> Object:
        await self._pass()
        return await self.behind.replace_lease(namespace, body)


@virtual
async def test_one_leads_and_the_other_waits() -> None:
    hall = Hall()
    hall.join("a")
    await asyncio.sleep(1)
    hall.join("b", skew=3600)
    await asyncio.sleep(120)
    assert hall.began == [("a", 0.0)]
    assert hall.most == 1


@virtual
async def test_a_clean_stop_hands_over_at_once() -> None:
    hall = Hall()
    first = hall.join("a")
    await asyncio.sleep(1)
    hall.join("b")
    await asyncio.sleep(60)
    first.cancel()
    await asyncio.wait({first})
    assert hall.cluster.held("Lease", "lease")["spec"]["holderIdentity"] == ""
    await asyncio.sleep(RETRY_SECONDS * 2)
    assert [who for who, _ in hall.began] == ["a", "b"]
    assert hall.began[1][1] <= 61 + RETRY_SECONDS
    assert hall.most == 1


@virtual
async def test_a_leader_that_cannot_renew_stops_before_another_starts() -> None:
    hall = Hall()
    network = Partitioned(hall.cluster)
    hall.join("a", cluster=network)
    await asyncio.sleep(5)
    hall.join("b")
    network.hangs = True
    await asyncio.sleep(60)
    assert [who for who, _ in hall.began] == ["a", "b"]
    stopped, started = hall.ended[0][1], hall.began[1][1]
    assert stopped <= 5 + RENEW_DEADLINE
    assert started - stopped >= LEASE_SECONDS - RENEW_DEADLINE - RETRY_SECONDS
    assert hall.most == 1


@virtual
async def test_a_killed_leader_is_followed_after_the_lease_ran_out() -> None:
    hall = Hall()
    killed = hall.join("a")
    await asyncio.sleep(1)
    hall.cluster.refuse = lambda call: None
    hall.join("b")
    await asyncio.sleep(30)
    # Killed without a chance to release.
    refused = ApiError(0, "Unreachable", "killed")

    def dead(call: str) -> None:
        raise refused

    hall.cluster.refuse = dead
    killed.cancel()
    await asyncio.wait({killed})
    hall.cluster.refuse = lambda call: None
    await asyncio.sleep(LEASE_SECONDS + 2 * RETRY_SECONDS)
    assert [who for who, _ in hall.began] == ["a", "b"]
    assert hall.began[1][1] >= 31 + LEASE_SECONDS - RETRY_SECONDS


@virtual
async def test_the_same_identity_goes_on_at_once_after_a_crash() -> None:
    hall = Hall()
    hall.cluster.server.place(
        {
            "kind": "Lease",
            "metadata": {"namespace": "ns", "name": "lease"},
            "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15, "leaseTransitions": 3},
        }
    )
    hall.join("a")
    await asyncio.sleep(1)
    assert hall.cluster.held("Lease", "lease")["spec"]["leaseTransitions"] == 3
    assert hall.began == [("a", 0.0)]


@virtual
async def test_a_short_outage_costs_no_leadership() -> None:
    hall = Hall()
    network = Partitioned(hall.cluster)
    hall.join("a", cluster=network)
    await asyncio.sleep(3)

    def away(call: str) -> None:
        raise ApiError(503, "ServiceUnavailable", "later")

    hall.cluster.refuse = away
    await asyncio.sleep(RENEW_DEADLINE - 4)
    hall.cluster.refuse = lambda call: None
    await asyncio.sleep(60)
    assert hall.began == [("a", 0.0)]
    assert hall.ended == [] or hall.ended[0][1] > 60


def test_work_that_raises_is_not_swallowed() -> None:
    async def main() -> str:
        elector = LeaderElector(
            ScriptedCluster(), namespace="ns", name="lease", identity="a", now=lambda: EPOCH, beat=lambda: None
        )

        async def work() -> None:
            raise ValueError("broken")

        try:
            await elector.run(work)
        except ValueError as error:
            return str(error)
        return ""

    assert run(main()) == "broken"


@pytest.mark.parametrize(("code", "level"), [(403, logging.INFO), (503, logging.WARNING)])
def test_a_lease_that_an_uninstall_took_away_is_no_cause_for_alarm(
    code: int, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        hall = Hall()
        leading = hall.join("a")
        await asyncio.sleep(1)

        def refuse(call: str) -> None:
            raise ApiError(code, "Refused", "no more")

        hall.cluster.refuse = refuse
        leading.cancel()
        await asyncio.wait({leading})

    with caplog.at_level(logging.INFO):
        run(main())
    [said] = [record for record in caplog.records if record.message == "the Lease is left to run out"]
    assert said.levelno == level
