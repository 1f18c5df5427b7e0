"""Which volumes the provisioner makes and removes."""

from typing import Any

from localcluster.layout import VOLUMES
from localcluster.storage import PROVISIONED_BY, PROVISIONER, volumes_to_create, volumes_to_delete


def claim(uid: str, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "data", "namespace": "team", "uid": uid},
        "spec": {
            "storageClassName": "standard",
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": "1Gi"}},
            **spec,
        },
    }


def test_a_pending_claim_gets_a_folder_of_its_own() -> None:
    (volume,) = volumes_to_create([claim("a")], existing=set())
    assert volume["metadata"] == {"name": "pvc-a", "annotations": {PROVISIONED_BY: PROVISIONER}}
    assert volume["spec"]["hostPath"]["path"] == str(VOLUMES / "pvc-a")
    assert volume["spec"]["claimRef"]["uid"] == "a"
    assert volume["spec"]["accessModes"] == ["ReadWriteMany"]
    assert volume["spec"]["capacity"] == {"storage": "1Gi"}


def test_other_claims_are_left_alone() -> None:
    going = claim("d")
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    claims = [claim("a"), claim("b", volumeName="bound"), claim("c", storageClassName="fast"), going]
    assert volumes_to_create(claims, existing={"pvc-a"}) == []


def test_only_our_released_volumes_are_removed() -> None:
    def volume(name: str, phase: str, by: str) -> dict[str, Any]:
        return {"metadata": {"name": name, "annotations": {PROVISIONED_BY: by}}, "status": {"phase": phase}}

    released = volume("pvc-a", "Released", PROVISIONER)
    others = [volume("pvc-b", "Bound", PROVISIONER), volume("c", "Released", "else"), {"metadata": {"name": "d"}}]
    assert volumes_to_delete([released, *others]) == [released]
