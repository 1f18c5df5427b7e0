"""Resync: list everything periodically and compare it with the cache, because watch events may be lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from tfgpujob import names
from tfgpujob.core.observed.admission import related
from tfgpujob.core.observed.snapshot import POD_GROUPS, WORKLOADS, Kind, Object
from tfgpujob.kube.errors import ApiError
from tfgpujob.kube.interface import Cluster, ListPage
from tfgpujob.kube.list_watch import pages
from tfgpujob.shell.cluster_objects import CLUSTER_OBJECTS
from tfgpujob.shell.store import Key, Known, Store

logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 2.0
PAGE: Final = 100
"""Objects per request. Pages of 500 pods enlarge the process by 18 MB permanently."""
SELECTORS: Final = {
    Kind.JOB: "",
    **dict.fromkeys((Kind.NETWORK_POLICY, *POD_GROUPS, *WORKLOADS), names.LABEL_JOB_NAME),
    **dict.fromkeys(CLUSTER_OBJECTS, ""),
    Kind.SERVICE: names.LABEL_JOB_NAME,
    Kind.POD: names.LABEL_JOB_NAME,
    Kind.NODE: "",
}
OPTIONAL: Final = frozenset({*POD_GROUPS, *WORKLOADS, *CLUSTER_OBJECTS})
"""Kinds that the cluster may stop serving while the operator runs."""


class Resync:
    """Makes the cache equal to what the API server lists."""

    def __init__(
        self,
        cluster: Cluster,
        store: Store,
        changed: Callable[[Key], None],
        *,
        namespaces: Sequence[str],
        random: Callable[[], float],
        nodes: bool = False,
        network_policies: bool = False,
        pod_groups: Sequence[Kind] = (),
        kueue: Kind | None = None,
        namespace_selector: str = "",
    ) -> None:
        """`namespaces`: empty for all. `random` gives numbers in [0, 1). `nodes`, `network_policies`, `pod_groups`,
        `kueue` (the kind of its Workload): other kinds to list. `namespace_selector`: labels of the namespaces that are
        served; empty: any.
        """
        self._nodes = nodes
        policies = (Kind.NETWORK_POLICY,) if network_policies else ()
        workloads = (kueue,) if kueue is not None else ()
        self.dependents: Sequence[Kind] = (*policies, *pod_groups, *workloads, Kind.SERVICE, Kind.POD)
        """Kinds of objects that belong to jobs."""
        of_queues = () if kueue is None else (related(kueue, "ResourceFlavor"), related(kueue, "WorkloadPriorityClass"))
        self.cluster_objects: Sequence[Kind] = (*of_queues, Kind.POD_PRIORITY) if of_queues else ()
        """Cluster-scoped kinds that jobs in queues refer to."""
        self.selectors = {**SELECTORS, Kind.NAMESPACE: namespace_selector}
        self._gained: set[str] = set()
        """Namespaces that are newly selected and not listed yet."""
        self._cluster = cluster
        self._store = store
        self._changed = changed
        self.scopes: Sequence[str | None] = tuple(namespaces) or (None,)
        self._random = random
        self._just_listed: set[tuple[Kind, str | None]] = set()
        self.synced = asyncio.Event()
        """Set once everything has been listed."""
        self.versions: dict[tuple[Kind, str | None], str] = {}
        """The resourceVersion of the last list of a kind in a namespace, from which its watch continues."""

    async def first(self, beat: Callable[[], None]) -> None:
        """Fill the cache; retries until it succeeds."""
        await self._until_done(beat)
        self._just_listed = set(self.versions)
        self.synced.set()

    async def relist(self, beat: Callable[[], None]) -> None:
        """List everything now, until it succeeds. A list contains all earlier writes; a watch may lag."""
        await self._until_done(beat)

    async def run(self, every: float, beat: Callable[[], None]) -> None:
        """List everything every `every` seconds, ± 10 %; then requeue every job."""
        while True:
            await asyncio.sleep(every * (0.9 + self._random() / 5))
            await self._until_done(beat)
            for key in self._store.jobs():
                self._changed(key)

    async def once(self) -> None:
        """Raises ApiError."""
        if self.selectors[Kind.NAMESPACE]:
            await self.list(Kind.NAMESPACE, None)
        for kind in self.cluster_objects:
            await self.list(kind, None)
        listed_below = frozenset(self._gained)
        for kind in (Kind.JOB, *self.dependents):
            for namespace in self.scopes:
                await self.list(kind, namespace)
        self._gained -= listed_below
        if self._nodes:
            await self.list(Kind.NODE, None)

    async def relisted(self, kind: Kind, namespace: str | None) -> str:
        """List one kind in one namespace (None: all), until it succeeds. Returns the list's resourceVersion.

        What the first list has covered is not listed again: a watch continues from there.
        """
        if (kind, namespace) in self._just_listed:
            self._just_listed.discard((kind, namespace))
            return self.versions[kind, namespace]
        await self._until_done(lambda: None, partial(self.list, kind, namespace))
        return self.versions[kind, namespace]

    def select(self, namespace: str) -> None:
        """Start to serve the namespace; `pick_up` lists its objects."""
        selected = self._store.namespaces.selected
        if selected is not None and namespace not in selected:
            selected.add(namespace)
            self._gained.add(namespace)

    def deselect(self, namespace: str) -> None:
        """Stop serving the namespace: its objects are left alone."""
        selected = self._store.namespaces.selected
        if selected is not None and namespace in selected:
            selected.discard(namespace)
            self._gained.discard(namespace)
            for key in self._store.drop(namespace):
                self._changed(key)

    async def pick_up(self) -> None:
        """List the objects of namespaces that are newly served."""
        while self._gained:
            namespace = self._gained.pop()
            for kind in (Kind.JOB, *self.dependents):
                await self._until_done(lambda: None, partial(self.list, kind, namespace))
                del self.versions[kind, namespace]

    async def _until_done(self, beat: Callable[[], None], listing: Callable[[], Awaitable[None]] | None = None) -> None:
        while True:
            beat()
            try:
                return await (listing or self.once)()
            except ApiError as error:
                hint = "install the CRD first" if error.code == 404 else ""
                logger.warning("cannot list", extra={"error": str(error), "hint": hint})
            await asyncio.sleep(RETRY_SECONDS)

    async def list(self, kind: Kind, namespace: str | None) -> None:
        """Make the cache equal to a list of one kind in one namespace (None: all). Raises ApiError.

        An optional kind that is not served does not stop the other lists, and its cached objects stay: its scheduler or
        Kueue is being upgraded, or the API server has just started. A deletion would have arrived as an event.
        """
        try:
            await self._list(kind, namespace)
        except ApiError as error:
            if error.code != 404 or kind not in OPTIONAL:
                raise
            hint = "if its controller was upgraded, restart the operator"
            logger.warning("the cluster does not serve it now", extra={"kind": kind, "hint": hint})
            self.versions[kind, namespace] = ""

    async def _list(self, kind: Kind, namespace: str | None) -> None:
        before = {known.uid: known for known in self._store.known(kind, namespace)}
        nodes_before, elsewhere = self._store.nodes.known(), list[Object]()

        limit = PAGE

        async def fetch(token: str) -> ListPage:
            nonlocal limit
            selector = self.selectors[kind]
            page = await self._cluster.list(kind, namespace, selector=selector, limit=limit, token=token)
            # After a large object the next ones may be large too, and a page that is too long is read in vain.
            limit = min(PAGE, 2 * (page.limit or PAGE))
            return page

        async for page in pages(fetch):
            for obj in page.items:
                if not _has_identity(obj):
                    self._store.unreadable.add(kind, "", "", "an item without a name and a uid")
                    continue
                before.pop(obj["metadata"]["uid"], None)
                if kind in {Kind.NODE, Kind.NAMESPACE, *CLUSTER_OBJECTS}:
                    elsewhere.append(obj)
                elif (key := self._store.put(kind, obj)) is not None:
                    self._changed(key)
        self._drop(before)
        if kind is Kind.NAMESPACE:
            self._sync_namespaces({obj["metadata"]["name"] for obj in elsewhere})
        for key in self._concerned(kind, elsewhere, nodes_before):
            self._changed(key)
        self.versions[kind, namespace] = page.resource_version

    def _concerned(self, kind: Kind, listed: Sequence[Object], nodes_before: frozenset[str]) -> Sequence[Key]:
        """The jobs that a list of a cluster-scoped kind concerns."""
        store = self._store
        if kind is Kind.NODE:
            return store.jobs_on(store.nodes.sync(listed, nodes_before, store.nodes_named()))
        changed = kind in CLUSTER_OBJECTS and store.cluster_objects.sync(kind, listed)
        return store.jobs_in_queues() if changed else ()

    def _sync_namespaces(self, listed: set[str]) -> None:
        for namespace in (self._store.namespaces.selected or set()) - listed:
            self.deselect(namespace)
        for namespace in listed:
            self.select(namespace)

    def _drop(self, unlisted: dict[str, Known]) -> None:
        """They existed before the list began and are not in it: their DELETED event was lost."""
        for known in unlisted.values():
            key = self._store.remove(known.kind, known.namespace, known.name, known.uid)
            if key is not None:
                logger.warning(
                    "a deletion was missed",
                    extra={"kind": known.kind, "object": f"{known.namespace}/{known.name}"},
                )
                self._changed(key)


def _has_identity(obj: object) -> bool:
    metadata = obj.get("metadata") if isinstance(obj, dict) else None
    return isinstance(metadata, dict) and all(isinstance(metadata.get(key), str) for key in ("name", "uid"))
