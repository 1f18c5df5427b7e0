"""The claims of a replica: there before its pod, the same in every attempt, and kept unless the job says otherwise.

And the template of the devices that it claims.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.harness.history import Change
from tests.harness.promises.truth import Truth, replica, title
from tests.harness.resources import Object, controller

from tfgpujob import names


def claims_come_before_pods(change: Change, truth: Truth) -> Iterator[str]:
    """No pod is made before the claims of its own, and the template of its devices."""
    if change.verb != "create" or change.kind != "Pod":
        return
    devices = change.object["spec"].get("resourceClaims") or ()
    templates = {claim["resourceClaimTemplateName"] for claim in devices if "resourceClaimTemplateName" in claim}
    needed = [("PersistentVolumeClaim", name) for name in _claims(change.object)]
    for kind, name in [*needed, *(("ResourceClaimTemplate", name) for name in templates)]:
        if (kind, change.object["metadata"]["namespace"], name) not in truth.server.objects:
            yield f"{title(change)} before its {kind} {name}"


def claims_stay_the_replicas(change: Change, truth: Truth) -> Iterator[str]:
    """A replica has the same claims in every attempt, and no other replica has them."""
    if change.verb != "create" or change.kind != "Pod" or not replica(change.object)[0]:
        return
    held = truth.claims.setdefault(replica(change.object), _claims(change.object))
    if held != _claims(change.object):
        yield f"{title(change)} has {sorted(_claims(change.object))}, and had {sorted(held)}"
    uid = replica(change.object)[0]
    for other, theirs in truth.claims.items():
        if other[0] == uid and other != replica(change.object) and theirs & held:
            yield f"{title(change)} shares {sorted(theirs & held)} with {other}"


def only_claims_that_are_to_go_have_an_owner(change: Change, truth: Truth) -> Iterator[str]:
    """What has an owner, garbage collection deletes with it."""
    if change.verb != "create" or change.kind != "PersistentVolumeClaim":
        return
    meta = change.object["metadata"]
    owner, role = controller(change.object), meta["labels"][names.LABEL_REPLICA_TYPE]
    job = truth.server.objects.get((names.KIND, meta["namespace"], meta["labels"][names.LABEL_JOB_NAME]))
    if job is None:
        return
    policy = job["spec"]["replicaSpecs"][role].get("persistentVolumeClaimRetentionPolicy") or {}
    if (owner is not None) != (policy.get("whenDeleted") == "Delete"):
        yield f"{title(change)} {'has an' if owner else 'has no'} owner under {policy}"


def _claims(pod: Object) -> frozenset[str]:
    """Those that are the replica's own, as a StatefulSet names them; a user may name others, which may not be there."""
    volumes = pod["spec"].get("volumes") or ()
    named = {v["name"]: v["persistentVolumeClaim"]["claimName"] for v in volumes if "persistentVolumeClaim" in v}
    return frozenset(claim for name, claim in named.items() if claim == f"{name}-{pod['metadata']['name']}")
