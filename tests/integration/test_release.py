"""What a release pushes to a real registry, on this machine's loopback, is what people get from it."""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from localcluster import apt, helm
from localcluster.release import version as current_version
from release.images import IMAGES
from tests.integration.registry import registry

from release import __main__ as release


def config_of(archive: Path) -> Any:
    with tarfile.open(archive) as tar:
        [name] = [name for name in tar.getnames() if name.endswith(".json") and name != "manifest.json"]
        config = tar.extractfile(name)
        assert config is not None
        return json.load(config)


@pytest.mark.skipif(not apt.available(), reason="the registry is a package of Debian 12")
def test_image_and_chart_of_a_release_come_back_from_a_registry(tmp_path: Path) -> None:
    version = current_version()
    with registry(tmp_path) as running:
        release.make(version, running.host, tmp_path / version, ["operator"])
        archive = tmp_path / version / IMAGES["operator"].file(version, "tar")
        image = f"{running.host}/tfgpujob-operator:{version}"
        running.push_image(archive, image)
        assert running.image_config(image)["rootfs"] == config_of(archive)["rootfs"]

        packed = tmp_path / version / f"tfgpujob-{version}.tgz"
        helm.push(packed, f"oci://{running.host}/charts")
        [pulled] = running.layers("charts/tfgpujob", version)
        assert pulled == f"sha256:{hashlib.sha256(packed.read_bytes()).hexdigest()}"
    [deployment] = [item for item in helm.template(packed) if item["kind"] == "Deployment"]
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == image
