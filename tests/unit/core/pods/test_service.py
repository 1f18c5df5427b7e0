"""The one headless service."""

from __future__ import annotations

from tests.unit.core import make

from tfgpujob import names
from tfgpujob.core.observed.metadata import pod_labels
from tfgpujob.core.pods.service import build_service
from tfgpujob.names import Role


def test_it_gives_names_to_pods_that_are_not_ready_yet() -> None:
    service = build_service(make.job())
    assert service["metadata"]["name"] == "train"
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True


def test_it_selects_every_pod_of_every_attempt() -> None:
    selector = build_service(make.job())["spec"]["selector"]
    for role in Role:
        assert selector.items() <= pod_labels("train", role, 3, 7, 1).items()


def test_it_goes_with_its_job() -> None:
    (owner,) = build_service(make.job())["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == (names.KIND, make.JOB_UID, True)
