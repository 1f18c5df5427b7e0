import asyncio
from collections.abc import AsyncIterator

from tests.harness.scripted import ScriptedCluster
from tests.harness.vtime import run
from tests.unit.shell.make import job, pod

from tfgpujob.core.observed.snapshot import Kind, Object
from tfgpujob.kube.errors import ApiError
from tfgpujob.kube.interface import WatchEvent
from tfgpujob.shell.reflector import RETRY_SECONDS, Reflector
from tfgpujob.shell.resync import Resync
from tfgpujob.shell.store import Store

Stream = list[WatchEvent | ApiError]


class Streams(ScriptedCluster):
    """Answers each watch request with the next of the given streams, then with silence."""

    def __init__(self, *streams: Stream) -> None:
        super().__init__(job(), pod())
        self.streams = list(streams)
        self.asked: list[str] = []

    async def watch(
        self, kind: Kind, namespace: str | None, *, selector: str, resource_version: str
    ) -> AsyncIterator[WatchEvent]:
        self.asked.append(resource_version)
        if not self.streams:
            await asyncio.Event().wait()
        for item in self.streams.pop(0):
            if isinstance(item, ApiError):
                raise item
            yield item


def event(kind: str, version: int) -> WatchEvent:
    return WatchEvent(kind, pod(version=version))


def follow(*streams: Stream, seconds: float = 1.0) -> tuple[Streams, list[tuple[str | None, str]]]:
    cluster = Streams(*streams)
    seen: list[tuple[str | None, str]] = []

    def handle(kind: Kind, change: str | None, obj: Object) -> None:
        seen.append((change, obj["metadata"]["resourceVersion"]))

    async def main() -> None:
        resync = Resync(cluster, Store(), lambda _: None, namespaces=(), random=lambda: 0.5)
        await resync.first(lambda: None)
        following = Reflector(cluster, resync, handle, kind=Kind.POD, namespace=None)
        task = asyncio.create_task(following.run(lambda: None))
        await asyncio.sleep(seconds)
        task.cancel()

    run(main())
    return cluster, seen


def test_it_watches_from_the_list_on_and_goes_on_where_a_stream_ended() -> None:
    cluster, seen = follow([event("ADDED", 200), event("BOOKMARK", 250)], [event("MODIFIED", 260)])
    listed = cluster.version
    assert cluster.asked == [listed, "250", "260"]
    assert seen == [("ADDED", "200"), ("MODIFIED", "260")]


def test_a_version_that_is_too_old_means_a_new_list() -> None:
    cluster, _ = follow([ApiError(410, "Expired", "too old resource version")], seconds=RETRY_SECONDS * 2)
    listed = cluster.version
    assert cluster.asked == [listed, listed]
    assert [c for c in cluster.calls if "Pod" in c] == ["list Pod * tfgpu.dev/job-name"] * 2


def test_a_broken_stream_is_taken_up_again_after_a_moment() -> None:
    cluster, seen = follow(
        [event("ADDED", 200), ApiError(0, "Unreachable", "reset")], [event("DELETED", 201)], seconds=RETRY_SECONDS * 2
    )
    listed = cluster.version
    assert cluster.asked == [listed, "200", "201"]
    assert seen == [("ADDED", "200"), ("DELETED", "201")]
