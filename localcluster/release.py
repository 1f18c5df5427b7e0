"""This checkout as a release on a cluster: its two images, and the chart's values that use them."""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from localcluster.clusters import Image

ROOT = Path(__file__).resolve().parents[1]
RELEASE = "tfgpujob"
NAMESPACE = "tfgpu-system"


def version() -> str:
    """The operator's version, as its package says."""
    text = (ROOT / "operator/src/tfgpujob/__init__.py").read_text()
    found = re.search(r'__version__ = "([^"]+)"', text)
    assert found
    return found[1]


def operator_image() -> str:
    return f"tfgpujob-operator:{version()}"


def trainer_image() -> str:
    """The CPU variant: pretend GPUs do not compute."""
    return f"tfgpujob-trainer:{version()}-cpu"


def images() -> Sequence[Image]:
    """The larger one first: it takes longest, whatever is done beside it."""
    return (
        Image(trainer_image(), ROOT / "trainer_image/Dockerfile", ROOT, {"VARIANT": "cpu"}),
        Image(operator_image(), ROOT / "Dockerfile", ROOT, {}),
    )


def chart_values() -> dict[str, Any]:
    # The tag stays when the code changes; this makes an upgrade start the operator's new image.
    annotations = {"tfgpu.dev/source": _source_digest()}
    return {
        "image": _parts(operator_image()),
        "trainerImage": _parts(trainer_image()),
        "podAnnotations": annotations,
    }


def _source_digest() -> str:
    """Digest of all sources of the operator's image."""
    folders = ROOT / "operator", ROOT / "trainer_image/src/tfgpujob_contract"
    sources = sorted(file for folder in folders for file in folder.rglob("*.py"))
    files = [ROOT / "Dockerfile", ROOT / "operator/requirements.txt", *sources]
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _parts(image: str) -> dict[str, str]:
    repository, _, tag = image.rpartition(":")
    return {"repository": repository, "tag": tag}
