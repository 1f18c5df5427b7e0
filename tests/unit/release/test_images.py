"""The images of a release, by a stand-in for buildah and Docker that installs nothing: the variant's lock decides."""

from __future__ import annotations

import re
import tarfile
from pathlib import Path

import pytest
from localcluster import archives, clusters, imagebuild, needs
from release.images import IMAGES, Image, save

ROOT = Path(__file__).resolve().parents[3]
VERSION = "9.8.7"


class Builder:
    """Takes the commands of a build. Its image holds the lock that the Dockerfile installs from."""

    def __init__(self, folder: Path) -> None:
        self._layer = folder / "layer.tar"
        self.tag = ""

    def run(self, *command: str | Path, log: Path | None = None) -> str:
        del log
        words = [str(word) for word in command]
        if "build" in words:
            self._build(words)
        for number, word in enumerate(words):
            if word.startswith("docker-archive:"):
                self._write(Path(word.split(":")[1]))
            if word == "--output":
                self._write(Path(words[number + 1]))
        return ""

    def _build(self, words: list[str]) -> None:
        dockerfile, context = Path(words[words.index("--file") + 1]), Path(words[-1])
        text = dockerfile.read_text()
        given = dict(re.findall(r"^ARG (\w+)=(\S+)", text, re.MULTILINE))
        given |= dict(word.removeprefix("--build-arg=").split("=") for word in words if word.startswith("--build-arg="))
        copied = re.findall(r"^COPY (\S+/requirements\S*\.txt) ", text, re.MULTILINE)
        lock = re.sub(r"\$\{(\w+)\}", lambda found: given[found[1]], copied[-1])
        with tarfile.open(self._layer, "w") as tar:
            tar.add(context / lock, lock)
        self.tag = words[words.index("--tag") + 1]

    def _write(self, target: Path) -> None:
        archives.write_archive(target, self.tag, self._layer, {"Hostname": "of the build"})


@pytest.fixture
def builder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Builder:
    made = Builder(tmp_path)
    for step in ("check_machine", "install_packages"):
        monkeypatch.setattr(needs, step, lambda: None)
    monkeypatch.setattr(imagebuild, "CACHE", tmp_path)
    monkeypatch.setattr(imagebuild, "_base_archive", lambda: tmp_path)
    for part in (imagebuild, clusters):
        monkeypatch.setattr(part, "run", made.run)
    monkeypatch.setattr(imagebuild, "_take_base", lambda _: None)
    monkeypatch.setattr(imagebuild, "mounts", lambda _: [])
    return made


def locks_in(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as image:
        layer = image.extractfile("layer.tar")
        assert layer is not None
        with tarfile.open(fileobj=layer) as files:
            return {member.name: opened.read() for member in files if (opened := files.extractfile(member))}


@pytest.mark.parametrize("engine", [None, "docker"], ids=["buildah", "docker"])
@pytest.mark.parametrize("image", IMAGES.values(), ids=IMAGES)
def test_an_image_is_built_from_its_lock_and_has_its_tag(
    image: Image, engine: str | None, builder: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusters, "_container_engine", lambda: engine)
    save(image, ROOT, VERSION, "registry.example.com/ml", tmp_path)
    archive = tmp_path / image.file(VERSION, "tar")
    assert locks_in(archive) == {image.lock: (ROOT / image.lock).read_bytes()}
    suffix = f"-{image.variant}" if image.variant else ""
    tags, _ = archives.image_of(archive)
    assert tags == [builder.tag] == [f"registry.example.com/ml/{image.name}:{VERSION}{suffix}"]


def packages(lock: str) -> set[str]:
    """What a lock pins, each with a hash."""
    text = (ROOT / lock).read_text()
    pinned = re.findall(r"^([\w.-]+==\S+) \\\n +--hash=sha256:[0-9a-f]{64}", text, re.MULTILINE)
    assert len(pinned) == len(re.findall(r"^[\w.-]+==", text, re.MULTILINE))
    return set(pinned)


def test_the_variant_for_gpus_differs_by_cuda_alone() -> None:
    gpu, cpu = (packages(IMAGES[name].lock) for name in ("gpu", "cpu"))
    names = {pin.partition("==")[0] for pin in gpu - cpu}
    assert {name for name in names if not name.startswith("nvidia-")} == {"tensorflow"}
    wanted = ("cublas", "cuda-runtime", "cudnn", "nccl", "cuda-nvcc")
    assert {f"nvidia-{part}-cu12" for part in wanted} <= names
    assert {pin.partition("==")[0] for pin in cpu - gpu} == {"tensorflow-cpu"}
