"""An API server in memory: small and honest.

It keeps what a real v1.20 server keeps of the kinds in `resources`: one counter of resourceVersions, uids,
generations, conflicts, preconditions, grace, finalizers, quotas, refusals, a history that can be compacted.
The conformance suite holds it to the real one. What it doesn't know it refuses with NotModelledError.

Objects are stored as plain dicts that are never changed in place, so reads and watch events share them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from tests.harness import admission
from tests.harness.admission import Rule
from tests.harness.history import Change, History
from tests.harness.refusals import (
    already_exists,
    bad_request,
    check_precondition,
    conflict,
    forbidden,
    invalid,
    not_found,
)
from tests.harness.resources import (
    NotModelledError,
    Object,
    Resource,
    matches,
    merged,
    resource,
    with_meta,
)

from tfgpujob.kube.errors import ApiError

Key = tuple[str, str, str]
"""(kind, namespace, name); the namespace is empty for what has none."""


NAMESPACE_FINALIZER = "kubernetes"
"""A real namespace keeps it in its spec; here it stands with the others. The namespace controller drops it."""


class ApiServer:
    """The store and its rules. Synchronous; every call is one request that is served at once."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self.clock = clock
        self.history = History()
        self.objects: dict[Key, Object] = {}
        self.rules: list[Rule] = []
        self.observers: list[Callable[[Change], None]] = []
        self.schemas: dict[str, Callable[[Object], Object]] = {}
        """Per kind: prunes, defaults and validates an object by its CRD, raising 422."""
        self.mutates: Callable[[Object], Object] = lambda pod: pod
        """Mutating admission of pods: what webhooks and LimitRanges add."""
        self.quota_delay = 0.0
        """Seconds until the quota controller has seen that a pod has ended or is gone."""
        self._counted: dict[str, tuple[datetime, Object]] = {}
        """Until when quotas count such a pod as it was, by its uid."""
        self._uids = itertools.count(1)
        self.create("Namespace", "", {"metadata": {"name": "default"}}, by="setup")

    def place(self, obj: Mapping[str, Any]) -> Object:
        """Store an object as it is, its uid included and unchecked: what a test begins with."""
        row = resource(obj["kind"])
        meta = {"uid": f"placed-{next(self._uids)}", **obj["metadata"]}
        new = {**obj, "metadata": meta}
        old = self.objects.get(_key(row, new))
        return self._commit("MODIFIED" if old else "ADDED", row, old, new, "setup", "place")

    # Reads

    def get(self, kind: str, namespace: str, name: str) -> Object:
        """The object, or 404."""
        found = self.objects.get((kind, namespace, name))
        if found is None:
            raise not_found(resource(kind), name)
        return found

    def select(self, kind: str, namespace: str | None = None, selector: str = "") -> list[Object]:
        """All objects of that kind, of one namespace or all, in the order of their names."""
        chosen = (
            (key, obj)
            for key, obj in self.objects.items()
            if key[0] == kind and (namespace is None or key[1] == namespace)
        )
        return [
            obj
            for _, obj in sorted(chosen, key=lambda item: item[0])
            if not selector or matches(selector, obj["metadata"].get("labels") or {})
        ]

    def list_page(
        self, kind: str, namespace: str | None, selector: str = "", limit: int = 0, token: str = ""
    ) -> tuple[list[Object], int, str]:
        """Items, the revision that they are of, and the token of the next page, empty at the end."""
        resource(kind)
        if token:
            return self.history.next_page(token, limit)
        return self.history.first_page(self.select(kind, namespace, selector), limit)

    # Writes

    def create(self, kind: str, namespace: str, body: Mapping[str, Any], *, by: str, dry_run: bool = False) -> Object:
        """201 with the stored object, or the refusal of a real server, checked in its order.

        `dry_run` stores nothing.
        """
        row = resource(kind)
        _check_type(row, body)
        meta = dict(body.get("metadata") or {})
        if meta.get("namespace", namespace) != namespace:
            raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
        uid = f"{next(self._uids):08d}-0000-4000-8000-000000000000"
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = f"{meta['generateName']}{uid[3:8]}"
        if not meta.get("name"):
            raise invalid(row, "", ["metadata.name: Required value: name or generateName is required"])
        name = meta["name"]
        self._check_namespace(row, namespace, name)
        meta = merged(
            meta,
            namespace=namespace or None,
            uid=uid,
            creationTimestamp=_stamp(self.clock()),
            generation=1 if row.generation else None,
            deletionTimestamp=None,
            deletionGracePeriodSeconds=None,
            resourceVersion=None,
        )
        obj = self._shaped(row, {"apiVersion": row.api_version, "kind": kind, **body, "metadata": meta})
        if row.status:
            obj.pop("status", None)
        if kind == "Pod":
            obj["status"] = {"phase": "Pending"}
            obj = self.mutates(obj)
        admission.validate(row, obj)
        self._admit("create", row, obj)
        if (body.get("metadata") or {}).get("resourceVersion"):
            raise ApiError(500, "InternalError", "resourceVersion should not be set on objects to be created")
        holder = self.objects.get((kind, namespace, name))
        if holder is not None:
            raise already_exists(row, name, going="deletionTimestamp" in holder["metadata"])
        return obj if dry_run else self._commit("ADDED", row, None, obj, by, "create")

    def replace(self, kind: str, namespace: str, body: Mapping[str, Any], *, by: str, status: bool = False) -> Object:
        """PUT on the object, or on its /status: each applies only its own half. No change, no revision."""
        row = resource(kind)
        _check_type(row, body)
        meta = body["metadata"]
        old = self._updatable(row, namespace, meta)
        if status:
            if not row.status:
                raise not_found(row, meta["name"])
            new = merged(old, status=body.get("status"))
        else:
            new = self._with_spec(row, old, body)
        new = self._shaped(row, new)
        admission.validate(row, new)
        self._admit("update", row, new)
        if old == new:
            return old
        if not status and _is_released(new["metadata"]):
            self._remove(row, new, by, "replace")
            return new
        return self._commit("MODIFIED", row, old, new, by, "replace_status" if status else "replace")

    def delete(
        self,
        kind: str,
        namespace: str,
        name: str,
        *,
        by: str,
        uid: str = "",
        resource_version: str = "",
        grace: int | None = None,
        propagation: str = "Background",
    ) -> Object | None:
        """Remove the object, or mark it; what is left of it, None when it is gone."""
        row = resource(kind)
        old = self.get(kind, namespace, name)
        meta = old["metadata"]
        check_precondition(row, name, "UID", uid, meta["uid"], "deleted and then recreated")
        check_precondition(row, name, "ResourceVersion", resource_version, meta["resourceVersion"], "modified")
        verb = "delete" if uid else "delete by name"
        finalizers = _finalizers(meta.get("finalizers") or [], propagation)
        if kind == "Namespace":
            finalizers = finalizers or [NAMESPACE_FINALIZER]
        seconds = self._grace(row, old, grace)
        if not finalizers and not seconds:
            if row.graceful:
                old = self._commit("MODIFIED", row, old, self._marked(old, 0, []), by, verb)
            self._remove(row, old, by, verb)
            return None
        marked = self._marked(old, seconds, finalizers)
        if old == marked:
            return old
        return self._commit("MODIFIED", row, old, marked, by, verb)

    def bind(self, namespace: str, name: str, node: str) -> Object:
        """What the scheduler does: POST on /binding."""
        old = self.get("Pod", namespace, name)
        if old["spec"].get("nodeName"):
            raise ApiError(409, "Conflict", f'Operation cannot be fulfilled on pods/binding "{name}": assigned')
        new = merged(old, spec={**old["spec"], "nodeName": node})
        return self._commit("MODIFIED", resource("Pod"), old, new, "scheduler", "bind")

    # The inside

    def _shaped(self, row: Resource, obj: Object) -> Object:
        if row.kind == "Pod":
            return {**obj, "spec": admission.prune_pod(obj.get("spec") or {})}
        schema = self.schemas.get(row.kind)
        return schema(obj) if schema else dict(obj)

    def _check_namespace(self, row: Resource, namespace: str, name: str) -> None:
        if not row.namespaced:
            if namespace:
                raise NotModelledError(f"{row.kind} has no namespace")
            return
        space = self.objects.get(("Namespace", "", namespace))
        if space is None:
            raise not_found(resource("Namespace"), namespace)
        if space["metadata"].get("deletionTimestamp"):
            problem = f"unable to create new content in namespace {namespace} because it is being terminated"
            raise forbidden(row, name, problem)

    def _admit(self, verb: str, row: Resource, obj: Object) -> None:
        for rule in self.rules:
            refusal = rule(verb, row.kind, obj)
            if refusal is not None:
                raise refusal
        if row.kind == "Pod" and verb == "create":
            namespace = obj["metadata"]["namespace"]
            for quota in self.select("ResourceQuota", namespace):
                admission.check_quota(row, obj, quota, self._counted_pods(namespace))

    def _counted_pods(self, namespace: str) -> list[Object]:
        held = {uid: pod for uid, (until, pod) in self._counted.items() if until > self.clock()}
        here = {pod["metadata"]["uid"]: pod for pod in self.select("Pod", namespace)}
        return [pod for pod in {**here, **held}.values() if pod["metadata"]["namespace"] == namespace]

    def _updatable(self, row: Resource, namespace: str, meta: Mapping[str, Any]) -> Object:
        name = meta["name"]
        old = self.objects.get((row.kind, namespace, name))
        uid = meta.get("uid")
        if old is None and not uid:
            raise not_found(row, name)
        if old is None or (uid and uid != old["metadata"]["uid"]):
            problem = f"Precondition failed: UID in precondition: {uid}, UID in object meta:"
            raise conflict(row, name, f"StorageError: invalid object, Code: 4, AdditionalErrorMsg: {problem}")
        version = meta.get("resourceVersion")
        if not version:
            if row.kind in ("Pod", "Service", "Node", "Namespace", "ResourceQuota", "Event"):
                raise NotModelledError(f"PUT on a {row.kind} without resourceVersion")
            problem = "metadata.resourceVersion: Invalid value: 0x0: must be specified for an update"
            raise invalid(row, name, [problem])
        if version != old["metadata"]["resourceVersion"]:
            problem = "the object has been modified; please apply your changes to the latest version and try again"
            raise conflict(row, name, problem)
        return old

    def _with_spec(self, row: Resource, old: Object, body: Mapping[str, Any]) -> Object:
        meta = old["metadata"]
        wanted = body["metadata"]
        new_meta = merged(
            meta,
            labels=wanted.get("labels"),
            annotations=wanted.get("annotations"),
            ownerReferences=wanted.get("ownerReferences") or None,
            finalizers=wanted.get("finalizers") or None,
        )
        new = {**body, "apiVersion": row.api_version, "kind": row.kind, "metadata": new_meta}
        if row.status:
            new.pop("status", None)
            if "status" in old:
                new["status"] = old["status"]
        if row.kind == "Pod" and body.get("spec") != old["spec"]:
            raise invalid(row, meta["name"], ["spec: Forbidden: pod updates may not change fields other than …"])
        if row.generation and new.get("spec") != old.get("spec"):
            new["metadata"] = merged(new_meta, generation=meta["generation"] + 1)
        return new

    def _grace(self, row: Resource, obj: Object, asked: int | None) -> int:
        if not row.graceful or not obj["spec"].get("nodeName"):
            return 0
        if (obj.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            return 0
        if asked is not None:
            return asked
        return int(obj["spec"].get("terminationGracePeriodSeconds", 30))

    def _marked(self, old: Object, seconds: int, finalizers: list[str]) -> Object:
        """With a deletionTimestamp; a second delete can only shorten the grace period."""
        meta = old["metadata"]
        if "deletionTimestamp" in meta and meta["deletionGracePeriodSeconds"] <= seconds:
            return with_meta(old, finalizers=finalizers or None)
        first = "deletionTimestamp" not in meta
        return with_meta(
            old,
            deletionTimestamp=_stamp(self.clock() + timedelta(seconds=seconds)),
            deletionGracePeriodSeconds=seconds,
            finalizers=finalizers or None,
            generation=meta["generation"] + 1 if first and "generation" in meta else meta.get("generation"),
        )

    def _remove(self, row: Resource, obj: Object, by: str, verb: str) -> None:
        del self.objects[_key(row, obj)]
        self._commit("DELETED", row, obj, obj, by, verb)

    def _commit(self, change: str, row: Resource, old: Object | None, new: Object, by: str, verb: str) -> Object:
        revision = self.history.revision + 1
        stored = with_meta(new, resourceVersion=str(revision))
        if change != "DELETED":
            self.objects[_key(row, stored)] = stored
        if self.quota_delay and row.kind == "Pod" and old is not None:
            seen_at = self.clock() + timedelta(seconds=self.quota_delay)
            if admission.usage(old) != admission.usage(new) or change == "DELETED":
                self._counted.setdefault(new["metadata"]["uid"], (seen_at, old))
        entry = Change(revision, change, row.kind, old, stored, by, verb)
        self.history.append(entry)
        for observer in self.observers:
            observer(entry)
        return stored


def _key(row: Resource, obj: Mapping[str, Any]) -> Key:
    meta = obj["metadata"]
    return row.kind, meta.get("namespace", ""), meta["name"]


def _stamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _check_type(row: Resource, body: Mapping[str, Any]) -> None:
    if body.get("apiVersion", row.api_version) != row.api_version:
        given = body["apiVersion"]
        problem = f"does not match the expected API version ({row.api_version})"
        raise bad_request(f"the API version in the data ({given}) {problem}")
    if body.get("kind", row.kind) != row.kind:
        raise bad_request(f"{body['kind']} in the data does not match the expected kind {row.kind}")


def _is_released(meta: Mapping[str, Any]) -> bool:
    """Deleted before, and now nothing holds it: the last finalizer went, and no kubelet has to stop it."""
    waiting = meta.get("finalizers") or meta.get("deletionGracePeriodSeconds")
    return "deletionTimestamp" in meta and not waiting


def _finalizers(present: list[str], propagation: str) -> list[str]:
    others = [finalizer for finalizer in present if finalizer not in ("foregroundDeletion", "orphan")]
    extra = {"Background": [], "Foreground": ["foregroundDeletion"], "Orphan": ["orphan"]}
    if propagation not in extra:
        raise NotModelledError(f"propagationPolicy {propagation}")
    return others + extra[propagation]
