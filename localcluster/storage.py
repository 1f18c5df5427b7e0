"""A dynamic provisioner: a claim of the class `standard` gets a folder of this machine as its volume.

Run on node 1 as `python -m localcluster.storage`. The folder is writable by everybody, so that pods that
do not run as root can use it, and it goes with the claim. All nodes see it: they share the machine's disk.
"""

import shutil
import sys
import threading
import urllib.error
from collections.abc import Iterable
from pathlib import Path

from localcluster.api import Api, Object, Watched
from localcluster.layout import RUN, VOLUMES

PROVISIONER = "tfgpu.dev/local-folder"
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
STORAGE_CLASS: Object = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {
        "name": "standard",
        "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
    },
    "provisioner": PROVISIONER,
    "reclaimPolicy": "Delete",
    "volumeBindingMode": "Immediate",
}


def volumes_to_create(claims: Iterable[Object], existing: set[str]) -> list[Object]:
    """The volumes that pending claims of our class still lack."""
    wanted = []
    for claim in claims:
        spec, meta = claim["spec"], claim["metadata"]
        ours = spec.get("storageClassName") == STORAGE_CLASS["metadata"]["name"]
        open_claim = not spec.get("volumeName") and not meta.get("deletionTimestamp")
        if ours and open_claim and f"pvc-{meta['uid']}" not in existing:
            wanted.append(_volume(claim))
    return wanted


def volumes_to_delete(volumes: Iterable[Object]) -> list[Object]:
    """Our volumes whose claim is gone."""
    return [
        volume
        for volume in volumes
        if volume["metadata"].get("annotations", {}).get(PROVISIONED_BY) == PROVISIONER
        and volume.get("status", {}).get("phase") == "Released"
    ]


def _volume(claim: Object) -> Object:
    meta, spec = claim["metadata"], claim["spec"]
    name = f"pvc-{meta['uid']}"
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "annotations": {PROVISIONED_BY: PROVISIONER}},
        "spec": {
            "capacity": {"storage": spec["resources"]["requests"]["storage"]},
            "accessModes": spec["accessModes"],
            "volumeMode": "Filesystem",
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": spec["storageClassName"],
            "hostPath": {"path": str(VOLUMES / name), "type": "Directory"},
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": meta["namespace"],
                "name": meta["name"],
                "uid": meta["uid"],
            },
        },
    }


class Provisioner:
    """Makes the volumes true: folders, and PersistentVolume objects."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._wake = threading.Event()
        self._claims = Watched(api, "/api/v1/persistentvolumeclaims", self._wake.set)
        self._volumes = Watched(api, "/api/v1/persistentvolumes", self._wake.set)

    def run(self) -> None:
        """Work for ever."""
        self._claims.start()
        self._volumes.start()
        while True:
            self._wake.wait()
            self._wake.clear()
            try:
                self._reconcile()
            except (OSError, urllib.error.HTTPError) as error:
                print(repr(error), file=sys.stderr, flush=True)
                self._wake.set()
                threading.Event().wait(0.5)

    def _reconcile(self) -> None:
        volumes = self._volumes.objects.values()
        existing = {volume["metadata"]["name"] for volume in volumes}
        for volume in volumes_to_create(self._claims.objects.values(), existing):
            folder = Path(volume["spec"]["hostPath"]["path"])
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o777)
            self._api.create("/api/v1/persistentvolumes", volume)
        for volume in volumes_to_delete(volumes):
            shutil.rmtree(VOLUMES / volume["metadata"]["name"], ignore_errors=True)
            try:
                self._api.call(f"/api/v1/persistentvolumes/{volume['metadata']['name']}", method="DELETE")
            except urllib.error.HTTPError as error:
                if error.code != 404:
                    raise


def main() -> None:
    """Serve for ever."""
    Provisioner(Api(RUN / "addons.kubeconfig")).run()


if __name__ == "__main__":
    main()
