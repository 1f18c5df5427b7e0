"""The images, as archives that `docker load` takes.

The Dockerfiles and the builder leave no time of day in them, so that a layer whose content did not change keeps its
digest, and nodes do not pull it again with the next release.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from localcluster import clusters


@dataclass(frozen=True)
class Image:
    """One image of a release."""

    name: str
    dockerfile: str
    lock: str
    """The Python packages in it."""
    variant: str = ""
    """Follows the version in its tag."""
    arguments: Mapping[str, str] = field(default_factory=dict)

    def tag(self, version: str) -> str:
        return f"{version}-{self.variant}" if self.variant else version

    def file(self, version: str, kind: str) -> str:
        """The name of its archive, or of what describes it."""
        return f"{self.name}-{self.tag(version)}.{kind}"


IMAGES = {
    "operator": Image("tfgpujob-operator", "Dockerfile", "operator/requirements.txt"),
    "cpu": Image(
        "tfgpujob-trainer", "trainer_image/Dockerfile", "trainer_image/requirements/cpu.txt", "cpu", {"VARIANT": "cpu"}
    ),
    "gpu": Image("tfgpujob-trainer", "trainer_image/Dockerfile", "trainer_image/requirements/gpu.txt"),
}


def save(image: Image, tree: Path, version: str, registry: str, target: Path) -> None:
    """Build it from the release's files, and write its archive. Raises ClusterError."""
    tag = f"{f'{registry}/' if registry else ''}{image.name}:{image.tag(version)}"
    clusters.save_image(tag, tree / image.dockerfile, tree, image.arguments, target / image.file(version, "tar"))
