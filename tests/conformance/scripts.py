"""The calls. Each script is a short story with the same answers from both servers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from tests.conformance.sides import Side
from tests.conformance.transcript import Transcript
from tests.harness.resources import GPU, Object, with_meta

from tfgpujob import names
from tfgpujob.core.observed.snapshot import Config, Kind
from tfgpujob.core.pods.network_policy import build_network_policy
from tfgpujob.kube.errors import ApiError

Script = Callable[[Side, Transcript, str], Awaitable[None]]
SCRIPTS: dict[str, Script] = {}


def script(tell: Script) -> Script:
    SCRIPTS[tell.__name__] = tell
    return tell


def job(name: str, **meta: Any) -> Object:
    # Managed by another controller, so that an operator on the same cluster leaves it alone.
    spec = {
        "strategy": "MultiWorkerMirrored",
        "replicaSpecs": {"worker": {"replicas": 2}},
        "trainer": {"entrypoint": "digits", "globalBatchSize": 64, "epochs": 1},
        "runPolicy": {"managedBy": "example.com/nobody"},
    }
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": name, **meta},
        "spec": spec,
    }


def pod(name: str, *, spec: Object | None = None, gpus: Any = None, **meta: Any) -> Object:
    container: Object = {"name": "tensorflow", "image": "example.com/image:1"}
    if gpus is not None:
        container["resources"] = {"limits": {GPU: gpus}}
    # A scheduler that does not exist: only the script changes the pod.
    whole = {
        "containers": [container],
        "automountServiceAccountToken": False,
        "schedulerName": "nobody",
        **(spec or {}),
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **meta}, "spec": whole}


def service(name: str, **meta: Any) -> Object:
    ports = [{"name": "tensorflow", "port": 2222}]
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"a": "b"}, "ports": ports}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, **meta}, "spec": spec}


def lease(holder: str) -> Object:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.000000Z"}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "leader"},
        "spec": spec,
    }


def owned_by(owner: Object, *, block: bool = True) -> list[Object]:
    meta = owner["metadata"]
    reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": meta["name"]}
    return [{**reference, "uid": meta["uid"], "controller": True, "blockOwnerDeletion": block}]


def is_gone(side: Side, kind: str, namespace: str, name: str) -> bool:
    try:
        side.get(kind, namespace, name)
    except ApiError as refusal:
        return refusal.code == 404
    return False


@script
async def status_and_spec_are_apart(side: Side, told: Transcript, ns: str) -> None:
    made = told.call("create", lambda: side.create("TFGPUJob", ns, job("a")))
    told.call("create again", lambda: side.create("TFGPUJob", ns, job("a")))
    both = {**made, "spec": {**made["spec"], "image": "x:1"}, "status": {"phase": "Pending"}}
    after = await told.acall("status applies only status", lambda: side.cluster.replace_status(both))
    await told.acall("a stale status", lambda: side.cluster.replace_status(both))
    await told.acall("the same status", lambda: side.cluster.replace_status(after))
    edited = {**after, "spec": {**after["spec"], "image": "x:2"}, "status": {"phase": "Failed"}}
    after = told.call("spec applies no status", lambda: side.replace("TFGPUJob", ns, edited))
    labelled = with_meta(after, labels={"x": "y"})
    after = told.call("labels are no generation", lambda: side.replace("TFGPUJob", ns, labelled))
    bare = {key: value for key, value in after.items() if key != "status"}
    await told.acall("no status removes it", lambda: side.cluster.replace_status(bare))


@script
async def updates_that_are_refused(side: Side, told: Transcript, ns: str) -> None:
    made = side.create("TFGPUJob", ns, job("a"))
    other = with_meta(made, uid="00000000-0000-4000-8000-000000000001")
    await told.acall("another uid", lambda: side.cluster.replace_status(other))
    unversioned = with_meta(made, resourceVersion=None, namespace=ns)
    await told.acall("no version", lambda: side.cluster.replace_status(unversioned))
    side.delete("TFGPUJob", ns, "a")
    await told.acall("gone, with uid", lambda: side.cluster.replace_status(made))
    without = with_meta(made, uid=None)
    await told.acall("gone, without uid", lambda: side.cluster.replace_status(without))
    again = side.create("TFGPUJob", ns, job("a"))
    assert again["metadata"]["uid"] != made["metadata"]["uid"]
    await told.acall("recreated, the old one's status", lambda: side.cluster.replace_status(made))


@script
async def preconditions_of_deletes(side: Side, told: Transcript, ns: str) -> None:
    delete = side.cluster.delete
    wrong = "00000000-0000-4000-8000-000000000001"
    for kind, body in ((Kind.JOB, job("a")), (Kind.POD, pod("a")), (Kind.SERVICE, service("a"))):
        made = side.create(kind, ns, body)
        uid, version = made["metadata"]["uid"], made["metadata"]["resourceVersion"]
        await told.acall(f"{kind} another uid", lambda k=kind: delete(k, ns, "a", uid=wrong))  # type: ignore[misc]
        await told.acall(
            f"{kind} another version",
            lambda k=kind, u=uid: delete(k, ns, "a", uid=u, resource_version="1"),  # type: ignore[misc]
        )
        await told.acall(
            f"{kind} both right",
            lambda k=kind, u=uid, v=version: delete(k, ns, "a", uid=u, resource_version=v),  # type: ignore[misc]
        )
        await told.acall(f"{kind} gone", lambda k=kind: side.cluster.get(k, ns, "a"))  # type: ignore[misc]
        await told.acall(f"{kind} again", lambda k=kind, u=uid: delete(k, ns, "a", uid=u))  # type: ignore[misc]


@script
async def pods_on_a_node_go_gracefully(side: Side, told: Transcript, ns: str) -> None:
    side.create("Pod", ns, pod("a", spec={"terminationGracePeriodSeconds": 20}))
    side.bind(ns, "a", "nowhere")
    uid = side.get("Pod", ns, "a")["metadata"]["uid"]
    told.call("bind again", lambda: side.bind(ns, "a", "elsewhere"))
    await told.acall("delete", lambda: side.cluster.delete(Kind.POD, ns, "a", uid=uid))
    told.call("marked", lambda: side.get("Pod", ns, "a"))
    await told.acall("delete again", lambda: side.cluster.delete(Kind.POD, ns, "a", uid=uid))
    told.call("unchanged", lambda: side.get("Pod", ns, "a"))
    told.call("create in its place", lambda: side.create("Pod", ns, pod("a")))
    told.call("shorter", lambda: side.delete("Pod", ns, "a", grace=5))
    told.call("shortened", lambda: side.get("Pod", ns, "a"))
    await told.acall("force", lambda: side.cluster.delete(Kind.POD, ns, "a", uid=uid, grace_seconds=0))
    told.call("gone", lambda: side.get("Pod", ns, "a"))


@script
async def pods_that_have_ended_go_at_once(side: Side, told: Transcript, ns: str) -> None:
    side.create("Pod", ns, pod("a"))
    side.bind(ns, "a", "nowhere")
    running = side.get("Pod", ns, "a")
    ended = {**running, "status": {**running["status"], "phase": "Succeeded"}}
    told.call("status", lambda: side.replace("Pod", ns, ended, status=True))
    told.call("a status that is stale", lambda: side.replace("Pod", ns, ended, status=True))
    told.call("delete", lambda: side.delete("Pod", ns, "a"))
    told.call("gone", lambda: side.get("Pod", ns, "a"))


@script
async def finalizers_hold_an_object(side: Side, told: Transcript, ns: str) -> None:
    side.create("TFGPUJob", ns, job("a", finalizers=["example.com/hold"]))
    told.call("delete", lambda: side.delete("TFGPUJob", ns, "a"))
    held = told.call("held", lambda: side.get("TFGPUJob", ns, "a"))
    told.call("delete again", lambda: side.delete("TFGPUJob", ns, "a"))
    told.call("unchanged", lambda: side.get("TFGPUJob", ns, "a"))
    going = {**held, "status": {"phase": "Running"}}
    held = await told.acall("status while it goes", lambda: side.cluster.replace_status(going))
    told.call("released", lambda: side.replace("TFGPUJob", ns, with_meta(held, finalizers=None)))
    told.call("gone", lambda: side.get("TFGPUJob", ns, "a"))


@script
async def background_foreground_orphan(side: Side, told: Transcript, ns: str) -> None:
    for policy in ("Background", "Foreground", "Orphan"):
        name = policy.lower()
        owner = side.create("TFGPUJob", ns, job(name))
        side.create("Pod", ns, pod(name, ownerReferences=owned_by(owner), finalizers=["example.com/hold"]))
        side.create("Service", ns, service(name, ownerReferences=owned_by(owner)))
        told.call(policy, lambda n=name, p=policy: side.delete("TFGPUJob", ns, n, propagation=p))  # type: ignore[misc]
        if policy == "Background":
            told.note("the job is gone at once", is_gone(side, "TFGPUJob", ns, name))
        if policy == "Orphan":
            told.note("gone", await side.until(lambda n=name: is_gone(side, "TFGPUJob", ns, n)))  # type: ignore[misc]
            told.call("pod", lambda n=name: side.get("Pod", ns, n))  # type: ignore[misc]
            told.call("service", lambda n=name: side.get("Service", ns, n))  # type: ignore[misc]
            # Else it would hold its namespace for ever.
            side.replace("Pod", ns, with_meta(side.get("Pod", ns, name), finalizers=None))
            continue
        marked = await side.until(lambda n=name: _is_deleted(side.get("Pod", ns, n)))  # type: ignore[misc]
        told.note("the pod is deleted", marked)
        told.note("the job is held", not is_gone(side, "TFGPUJob", ns, name))
        held = side.get("Pod", ns, name)
        side.replace("Pod", ns, with_meta(held, finalizers=None))
        for kind in ("Pod", "Service", "TFGPUJob"):
            gone = await side.until(lambda k=kind, n=name: is_gone(side, k, ns, n))  # type: ignore[misc]
            told.note(f"{kind} goes", gone)


def _is_deleted(obj: Object) -> bool:
    return "deletionTimestamp" in obj["metadata"]


@script
async def an_owner_that_never_was(side: Side, told: Transcript, ns: str) -> None:
    ghost = job("ghost", uid="00000000-0000-4000-8000-000000000001")
    side.create("Pod", ns, pod("a", ownerReferences=owned_by(ghost)))
    told.note("collected", await side.until(lambda: is_gone(side, "Pod", ns, "a")))


@script
async def network_policies(side: Side, told: Transcript, ns: str) -> None:
    owner = side.create("TFGPUJob", ns, job("a"))
    config = Config("o", "t", "1", operator_namespace="system", operator_labels=(("app", "operator"),))
    policy = build_network_policy(owner, config)
    made = await told.acall("create", lambda: side.cluster.create(Kind.NETWORK_POLICY, ns, policy))
    await told.acall("again", lambda: side.cluster.create(Kind.NETWORK_POLICY, ns, policy))
    told.call("a dot", lambda: side.create("NetworkPolicy", ns, {**policy, "metadata": {"name": "a.b"}}))
    told.call("upper case", lambda: side.create("NetworkPolicy", ns, {**policy, "metadata": {"name": "A"}}))
    page = await side.cluster.list(Kind.NETWORK_POLICY, ns, selector=names.LABEL_JOB_NAME)
    told.note("listed", [item["metadata"]["name"] for item in page.items])
    told.note("stored as sent", made["spec"] == policy["spec"])
    side.delete("TFGPUJob", ns, "a")
    told.note("collected", await side.until(lambda: is_gone(side, "NetworkPolicy", ns, "a")))


@script
async def names_and_labels(side: Side, told: Transcript, ns: str) -> None:
    told.call("upper case", lambda: side.create("TFGPUJob", ns, job("A_b")))
    told.call("a dot", lambda: side.create("TFGPUJob", ns, job("a.b")))
    told.call("too long", lambda: side.create("TFGPUJob", ns, job("a" * 254)))
    told.call("no name", lambda: side.create("TFGPUJob", ns, {**job(""), "metadata": {}}))
    told.call("a service with a digit", lambda: side.create("Service", ns, service("1a")))
    told.call("a service that is long", lambda: side.create("Service", ns, service("a" * 64)))
    told.call("a bad label", lambda: side.create("Pod", ns, pod("a", labels={"k": "a b"})))
    told.call("a long label", lambda: side.create("Pod", ns, pod("a", labels={"k": "a" * 64})))
    told.call("a bad key", lambda: side.create("Pod", ns, pod("a", labels={"-k": "a"})))
    told.call("another namespace", lambda: side.create("Pod", ns, pod("a", namespace="elsewhere")))
    told.call("no namespace", lambda: side.create("Pod", "nowhere-at-all", pod("a")))
    told.call("another kind", lambda: side.create("TFGPUJob", ns, pod("a")))


@script
async def pods_that_are_refused(side: Side, told: Transcript, ns: str) -> None:
    def create(what: str, **spec: Any) -> None:
        told.call(what, lambda: side.create("Pod", ns, pod("a", spec=spec)))

    image = {"name": "tensorflow", "image": "x:1"}
    create("no containers", containers=[])
    create("containers that are no list", containers="x")
    create("no image", containers=[{"name": "a"}])
    create("a bad container name", containers=[{**image, "name": "A_b"}])
    create("a container twice", containers=[image, image])
    create("a mount without volume", containers=[{**image, "volumeMounts": [{"name": "v", "mountPath": "/v"}]}])
    create("an env that is no name", containers=[{**image, "env": [{"name": "a b", "value": "x"}]}])
    create("an env that is no string", containers=[{**image, "env": [{"name": "A", "value": 1}]}])
    create("a long hostname", hostname="a" * 64)
    create("a bad subdomain", subdomain="A.b")
    create("a restart policy", restartPolicy="Sometimes")
    create("half a GPU", containers=[{**image, "resources": {"limits": {GPU: "0.5"}}}])
    create("a GPU without limit", containers=[{**image, "resources": {"requests": {GPU: 1}}}])
    create("an unknown field is dropped", nonsense=1)
    told.call("as stored", lambda: "nonsense" in side.get("Pod", ns, "a")["spec"])


@script
async def quotas(side: Side, told: Transcript, ns: str) -> None:
    hard = {"count/pods": "2", f"requests.{GPU}": "1"}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": hard}}
    side.create("ResourceQuota", ns, quota)
    await side.until(lambda: _has_usage(side, ns))
    told.call("too many GPUs", lambda: side.create("Pod", ns, pod("a", gpus=2)))
    told.call("fits", lambda: side.create("Pod", ns, pod("a", gpus=1)))
    told.call("the second GPU", lambda: side.create("Pod", ns, pod("b", gpus=1)))
    told.call("no GPU", lambda: side.create("Pod", ns, pod("b")))
    told.call("one more", lambda: side.create("Pod", ns, pod("c")))
    told.call("both", lambda: side.create("Pod", ns, pod("c", gpus=3)))
    told.call("quota speaks before AlreadyExists", lambda: side.create("Pod", ns, pod("b")))
    side.delete("Pod", ns, "b")
    told.note("room again", await side.until(lambda: _fits(side, ns)))


def _has_usage(side: Side, ns: str) -> bool:
    quota = side.get("ResourceQuota", ns, "q")
    return "used" in (quota.get("status") or {}) or "00000000-0000" in quota["metadata"]["uid"][8:]


def _fits(side: Side, ns: str) -> bool:
    try:
        side.create("Pod", ns, pod("c"))
    except ApiError:
        return False
    return True


@script
async def a_namespace_that_goes(side: Side, told: Transcript, ns: str) -> None:
    side.create("Pod", ns, pod("hold", finalizers=["example.com/hold"]))
    side.delete("Namespace", "", ns)
    told.note("terminating", await side.until(lambda: _is_deleted(side.get("Namespace", "", ns))))
    told.call("a pod", lambda: side.create("Pod", ns, pod("a")))
    told.call("a job", lambda: side.create("TFGPUJob", ns, job("a")))
    await side.until(lambda: _is_deleted(side.get("Pod", ns, "hold")))
    side.replace("Pod", ns, with_meta(side.get("Pod", ns, "hold"), finalizers=None))


@script
async def lists_in_pages(side: Side, told: Transcript, ns: str) -> None:
    for index in range(5):
        labels = {"odd": str(index % 2)}
        side.create("TFGPUJob", ns, job(f"a{index}", labels=labels))
    seen: list[str] = []
    page = await side.cluster.list(Kind.JOB, ns, limit=2)
    first = page.resource_version
    side.create("TFGPUJob", ns, job("a9"))
    side.delete("TFGPUJob", ns, "a4")
    while True:
        seen += [item["metadata"]["name"] for item in page.items]
        told.note("same version on every page", page.resource_version == first)
        if not page.token:
            break
        page = await side.cluster.list(Kind.JOB, ns, limit=2, token=page.token)
    told.note("all pages show the state of the first", seen)
    odd = await side.cluster.list(Kind.JOB, ns, selector="odd=1")
    told.note("by label", [item["metadata"]["name"] for item in odd.items])
    having = await side.cluster.list(Kind.JOB, ns, selector="odd")
    told.note("having the label", [item["metadata"]["name"] for item in having.items])
    await told.acall("a token that is none", lambda: side.cluster.list(Kind.JOB, ns, limit=2, token="x"))


@script
async def watches(side: Side, told: Transcript, ns: str) -> None:
    start = side.create("Service", ns, service("before"))["metadata"]["resourceVersion"]
    made = side.create("Pod", ns, pod("a"))
    side.bind(ns, "a", "nowhere")
    side.delete("Pod", ns, "a", uid=made["metadata"]["uid"])
    side.delete("Pod", ns, "a", grace=0)
    told.call("from the start", lambda: side.watch("Pod", ns, start))
    told.call("from the second on", lambda: side.watch("Pod", ns, made["metadata"]["resourceVersion"]))
    other = side.create("TFGPUJob", ns, job("a"))
    told.call("another kind", lambda: side.watch("TFGPUJob", ns, start))
    side.forget_history()
    told.call("too old", lambda: side.watch("TFGPUJob", ns, "1"))
    told.call("now", lambda: side.watch("TFGPUJob", ns, other["metadata"]["resourceVersion"]))


@script
async def leases(side: Side, told: Transcript, ns: str) -> None:
    await told.acall("none", lambda: side.cluster.get_lease(ns, "leader"))
    made = await told.acall("create", lambda: side.cluster.create_lease(ns, lease("a")))
    await told.acall("create again", lambda: side.cluster.create_lease(ns, lease("b")))
    taken = {**made, "spec": {**made["spec"], "holderIdentity": "b"}}
    await told.acall("replace", lambda: side.cluster.replace_lease(ns, taken))
    await told.acall("replace a stale one", lambda: side.cluster.replace_lease(ns, made))
    unversioned = with_meta(made, resourceVersion=None)
    await told.acall("replace without version", lambda: side.cluster.replace_lease(ns, unversioned))


@script
async def events(side: Side, told: Transcript, ns: str) -> None:
    about = {"kind": "TFGPUJob", "name": "a", "namespace": ns}
    body = {"apiVersion": "v1", "kind": "Event", "type": "Normal", "reason": "Testing", "message": "x"}
    named = {**body, "metadata": {"name": "a.1"}, "involvedObject": about}
    await told.acall("event", lambda: side.cluster.create_event(ns, named))
    await told.acall("again", lambda: side.cluster.create_event(ns, named))
    elsewhere = {**named, "metadata": {"name": "a.2"}, "involvedObject": {**about, "namespace": "elsewhere"}}
    await told.acall("about another namespace", lambda: side.cluster.create_event(ns, elsewhere))
