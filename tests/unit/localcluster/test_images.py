"""Image names, archives, and the index of what the nodes must have."""

import hashlib
import io
import json
import os
import tarfile
from pathlib import Path

import pytest
from localcluster import archives, images
from localcluster.imagebuild import local_paths, mounts, pip_settings
from localcluster.layout import ClusterError, Node
from localcluster.normalise import normalise


@pytest.fixture(autouse=True)
def _index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "_INDEX", tmp_path / "index.json")


def archive(folder: Path, tag: str, content: str = "hello") -> Path:
    """A docker-archive with one layer that holds `content`."""
    layer, target = folder / "layer.tar", folder / f"{content}.tar"
    layer.write_text(content)
    archives.write_archive(target, tag, layer, {"Cmd": ["sh"]})
    return target


@pytest.mark.parametrize(
    ("tag", "full"),
    [
        ("busybox:1", "docker.io/library/busybox:1"),
        ("team/app:1", "docker.io/team/app:1"),
        ("localhost/pause:3.2", "localhost/pause:3.2"),
        ("registry.invalid/team/app:1", "registry.invalid/team/app:1"),
        ("host:5000/app:1", "host:5000/app:1"),
    ],
)
def test_names_are_written_as_the_kubelet_writes_them(tag: str, full: str) -> None:
    assert images.full_name(tag) == full


def test_an_archive_tells_its_tags_and_changes_its_version_with_its_content(tmp_path: Path) -> None:
    first, second = (archives.image_of(archive(tmp_path, "app:1", text)) for text in ("one", "two"))
    assert first[0] == second[0] == ["app:1"]
    assert first[1] != second[1]


def test_the_index_remembers_the_newest_archive_of_a_tag(tmp_path: Path) -> None:
    assert images.version_of("app:1") is None
    for text in ("one", "two"):
        assert images.remember(archive(tmp_path, "app:1", text)) == ["app:1"]
    newest = tmp_path / "two.tar"
    assert images.version_of("docker.io/library/app:1") == archives.image_of(newest)[1]
    newest.unlink()
    assert images.version_of("app:1") is None


def test_what_is_no_archive_is_refused_with_the_fix(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_text("no")
    with pytest.raises(ClusterError, match=r"x\.tar is not a docker-archive") as caught:
        images.remember(tmp_path / "x.tar")
    assert "docker save" in caught.value.fix


def test_only_what_is_missing_or_new_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, imports = set[str](), list[str]()

    def run(*command: str) -> str:
        if "import" in command:
            imports.append(Path(command[-1]).name)
            store.add("docker.io/library/app:1")
            return ""
        return "\n".join(store)

    monkeypatch.setattr(images, "run", run)
    monkeypatch.setattr(Node, "containerd_root", property(lambda _: tmp_path))
    images.remember(archive(tmp_path, "app:1", "one"))
    images.import_missing(Node(1))
    images.import_missing(Node(1))
    assert imports == ["one.tar"]
    images.remember(archive(tmp_path, "app:1", "two"))
    images.import_missing(Node(1))
    assert imports == ["one.tar", "two.tar"]
    store.clear()
    images.import_missing(Node(1))
    assert imports == ["one.tar", "two.tar", "two.tar"]


def test_an_import_that_finds_a_layer_gone_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = ["parent snapshot sha256:1 does not exist: not found", "", "no space left on device"]
    asked = []

    def run(*command: str) -> str:
        if "import" not in command:
            return ""
        asked.append(command)
        if problem := answers.pop(0):
            raise ClusterError(problem, "look")
        return ""

    monkeypatch.setattr(images, "run", run)
    monkeypatch.setattr(Node, "containerd_root", property(lambda _: tmp_path))
    images.remember(archive(tmp_path, "app:1", "one"))
    images.import_missing(Node(1))
    assert len(asked) == 2
    with pytest.raises(ClusterError, match="no space"):
        images.import_missing(Node(1))
    assert len(asked) == 3


def test_pip_settings_of_the_environment_go_before_those_of_files() -> None:
    listed = (
        ":env:.cert='/env/ca.pem'\nglobal.cert='/file/ca.pem'\n"
        "global.extra-index-url='file:///mirror/simple\\nhttps://b.invalid/simple'\n"
    )
    assert pip_settings(listed) == {
        "cert": "/env/ca.pem",
        "extra-index-url": "file:///mirror/simple https://b.invalid/simple",
    }


def test_folders_that_pip_reads_are_found_with_the_files_that_an_index_links_to() -> None:
    settings = {
        "find-links": "/wheels https://w.invalid/",
        "extra-index-url": f"file:///mirror/simple/ {os.sep}simple https://b.invalid/simple",
    }
    assert local_paths(settings) == {"/wheels", "/mirror", "/simple"}


def test_a_build_sees_the_constraints_that_pip_is_told_to_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip ends with an error where the file is not there."""
    constraints, wheels = tmp_path / "constraints.txt", tmp_path / "wheels"
    constraints.write_text("torch<=2\n")
    wheels.mkdir()
    monkeypatch.setenv("PIP_CONSTRAINT", str(constraints))
    monkeypatch.setenv("PIP_FIND_LINKS", f"{wheels} {tmp_path / 'gone'}")
    targets = [target for _, target in mounts(tmp_path)]
    assert {str(constraints), str(wheels), "/etc/pip.conf"} <= set(targets)
    assert str(tmp_path / "gone") not in targets
    # buildah refuses two at one path.
    assert len(targets) == len(set(targets))


def test_two_builds_of_one_image_are_normalised_to_equal_bytes(tmp_path: Path) -> None:
    layer = tmp_path / "layer.tar"
    layer.write_text("content")
    made: list[Path] = []
    for host in ("a1b2", "c3d4"):
        built, normal = tmp_path / f"{host}.tar", tmp_path / f"{host}-normal.tar"
        archives.write_archive(built, f"{host}:1", layer, {"Cmd": ["sh"], "Hostname": host})
        os.utime(layer, (1, len(made)))
        normalise(built, normal, "app:1")
        made.append(normal)
    assert made[0].read_bytes() == made[1].read_bytes()
    tags, version = archives.image_of(made[0])
    assert tags == ["app:1"]
    with tarfile.open(made[0]) as tar:
        image = json.load(tar.extractfile(f"{version}.json") or io.BytesIO())
        content = (tar.extractfile("layer.tar") or io.BytesIO()).read()
    assert image["config"] == {"Cmd": ["sh"]}
    assert image["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(content).hexdigest()}"]
    assert content == b"content"
