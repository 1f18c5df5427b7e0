"""A release from this checkout: made twice it has equal bytes, and all of it carries one version."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from localcluster import helm
from release.images import IMAGES, Image
from tests.pages import files

from release import __main__ as release
from release import manifest, notes, version
from tfgpujob.api import crd

pytestmark = pytest.mark.slow

VERSION = "9.8.7-rc.1"
WHEEL_VERSION = "9.8.7rc1"
REGISTRY = "registry.example.com/ml"


BILLS = {
    f"tfgpujob-operator-{VERSION}.cdx.json": "tfgpujob",
    f"tfgpujob-trainer-{VERSION}-cpu.cdx.json": "tfgpujob-trainer",
    f"tfgpujob-trainer-{VERSION}.cdx.json": "tfgpujob-trainer",
}
"""The SBOMs, and what each is of."""
KINDS = (".py", ".toml", ".yaml", ".md")


def tracked() -> list[str]:
    """The files that git knows and that are there."""
    return [name for name in release._git("ls-files", "-z").split("\0") if name and (release.ROOT / name).is_file()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("release") / VERSION
    release.make(VERSION, REGISTRY, target)
    return target


@pytest.mark.deep
def test_two_builds_have_equal_bytes(folder: Path, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        release.make(VERSION, REGISTRY, tmp_path / "again")
    finally:
        os.umask(before)
    first = {file.name: file.read_bytes() for file in folder.iterdir()}
    again = {file.name: file.read_bytes() for file in (tmp_path / "again").iterdir()}
    assert first.keys() == again.keys()
    assert [name for name, content in first.items() if again[name] != content] == []


def test_everything_is_there_and_has_its_checksum(folder: Path) -> None:
    packages = [f"{name}-{WHEEL_VERSION}" for name in ("tfgpujob", "tfgpujob_contract", "tfgpujob_trainer")]
    expected = {*(f"{p}-py3-none-any.whl" for p in packages), *(f"{p}.tar.gz" for p in packages)}
    expected |= {f"tfgpujob-{VERSION}.tgz", "notes.md", *manifest.FILES, *release.DEFINITIONS, *BILLS}
    sums = dict(line.split("  ")[::-1] for line in (folder / "SHA256SUMS").read_text().splitlines())
    assert set(sums) == expected == {file.name for file in folder.iterdir()} - {"SHA256SUMS"}
    for name, digest in sums.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest


def test_packages_hold_all_code_the_version_and_the_licence(folder: Path) -> None:
    for package, folder_of in (
        ("tfgpujob", "operator/src/tfgpujob"),
        ("tfgpujob_contract", "trainer_image/src/tfgpujob_contract"),
        ("tfgpujob_trainer", "trainer_image/src/tfgpujob_trainer"),
    ):
        with zipfile.ZipFile(folder / f"{package}-{WHEEL_VERSION}-py3-none-any.whl") as wheel:
            metadata = wheel.read(f"{package}-{WHEEL_VERSION}.dist-info/METADATA").decode()
            packed = {name for name in wheel.namelist() if name.endswith(".py")}
        assert f"\nVersion: {WHEEL_VERSION}\n" in metadata
        assert "\nLicense-Expression: Apache-2.0\n" in metadata
        written = {name for name in tracked() if name.startswith(f"{folder_of}/") and name.endswith(".py")}
        assert packed == {f"{package}{name.removeprefix(folder_of)}" for name in written}
        with tarfile.open(folder / f"{package}-{WHEEL_VERSION}.tar.gz") as archive:
            assert {(member.uid, member.uname) for member in archive} == {(0, "")}
            inside = "" if package == "tfgpujob_contract" else f"src/{package}/"
            assert f"{package}-{WHEEL_VERSION}/{inside}__init__.py" in archive.getnames()


@pytest.mark.parametrize(("image", "file"), [*zip(IMAGES.values(), BILLS, strict=True)], ids=IMAGES)
def test_an_sbom_names_what_the_image_is_built_from(folder: Path, image: Image, file: str) -> None:
    bill = json.loads((folder / file).read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    of = bill["metadata"]["component"]
    assert (of["name"], of["version"], of["licenses"][0]["license"]["id"]) == (BILLS[file], VERSION, "Apache-2.0")
    locked = dict(re.findall(r"^([\w.-]+)==(\S+)", (release.ROOT / image.lock).read_text(), re.MULTILINE))
    assert {part["name"]: part["version"] for part in bill["components"]} == locked | {"tfgpujob-contract": VERSION}
    assert all(part["purl"].startswith("pkg:pypi/") for part in bill["components"])
    assert all(part["externalReferences"][0]["hashes"] for part in bill["components"] if part["name"] in locked)


@pytest.mark.deep
def test_an_sbom_fits_its_schema(folder: Path) -> None:
    # Seconds, which only this test pays for.
    from cyclonedx.schema import SchemaVersion  # noqa: PLC0415
    from cyclonedx.validation.json import JsonStrictValidator  # noqa: PLC0415

    check = JsonStrictValidator(SchemaVersion.V1_6).validate_str
    text = (folder / next(iter(BILLS))).read_text()
    assert check(text) is None
    assert check(text.replace('"library"', '"librarian"')) is not None


def test_the_lock_of_an_sbom_is_the_one_that_the_image_installs() -> None:
    for image in IMAGES.values():
        dockerfile = (release.ROOT / image.dockerfile).read_text()
        variant = image.arguments.get("VARIANT") or re.findall(r"^ARG VARIANT=(\w+)", dockerfile, re.MULTILINE)[:1]
        named = dockerfile.replace("${VARIANT}", "".join(variant))
        assert f"COPY {image.lock} " in named, image


def test_the_packed_chart_installs_this_release(folder: Path) -> None:
    objects = helm.template(folder / f"tfgpujob-{VERSION}.tgz")
    container = images(objects)
    assert container == f"{REGISTRY}/tfgpujob-operator:{VERSION}"
    assert "CustomResourceDefinition" in {item["kind"] for item in objects}


def images(objects: list[dict[str, Any]]) -> str:
    [deployment] = [item for item in objects if item["kind"] == "Deployment"]
    return str(deployment["spec"]["template"]["spec"]["containers"][0]["image"])


@pytest.mark.parametrize(("name", "definition"), [*zip(manifest.FILES, release.DEFINITIONS, strict=True)])
def test_install_yaml_is_what_the_chart_installs_without_helm(folder: Path, name: str, definition: str) -> None:
    text = (folder / name).read_text()
    assert f"kubectl apply --server-side -f {name}\n" in text
    found = list(yaml.load_all(text, Loader=yaml.CSafeLoader))
    assert [item["kind"] for item in found[:2]] == ["Namespace", "CustomResourceDefinition"]
    assert images(found) == f"{REGISTRY}/tfgpujob-operator:{VERSION}"
    assert "helm.sh/" not in text
    assert "managed-by: Helm" not in text
    assert found[1] == crd.build(cel=definition == "tfgpujobs.yaml")
    by_chart = helm.template(folder / f"tfgpujob-{VERSION}.tgz", release="tfgpu", namespace="tfgpu-system")
    places = {(item["kind"], item["metadata"]["name"]) for item in by_chart}
    assert {(item["kind"], item["metadata"]["name"]) for item in found} == {*places, ("Namespace", "tfgpu-system")}
    spaces = {item["metadata"].get("namespace", "tfgpu-system") for item in found}
    assert spaces == {"tfgpu-system"}


def test_the_kustomization_of_the_page_changes_what_is_in_its_base(folder: Path) -> None:
    text = files(release.ROOT / "docs/releases.md")["kustomization.yaml"]
    told = yaml.safe_load(text)
    [base] = told["resources"]
    found = list(yaml.load_all((folder / base).read_text(), Loader=yaml.CSafeLoader))
    [image], [patch] = told["images"], [yaml.safe_load(each["patch"]) for each in told["patches"]]
    assert images(found).rpartition(":")[0] == image["name"]
    [changed] = [o for o in found if all(o.get(key) == patch[key] for key in ("apiVersion", "kind"))]
    assert changed["metadata"].items() >= patch["metadata"].items()
    [there], [new] = (o["spec"]["template"]["spec"]["containers"] for o in (changed, patch))
    assert there["name"] == new["name"]
    known = {variable["name"]: variable.get("value") for variable in there["env"]}
    for variable in new["env"]:
        assert str(known[variable["name"]]).startswith(f"{REGISTRY}/tfgpujob-")
        assert variable["value"].rpartition("/")[2].split(":")[0] in known[variable["name"]]


def test_a_dry_run_leaves_the_checkout_as_it_is_and_a_written_one_collects_the_notes(tmp_path: Path) -> None:
    for place in (*version.PLACES, "CHANGELOG.md"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text((release.ROOT / place).read_text())
    changes = tmp_path / "release/changes"
    changes.mkdir(parents=True)
    (changes / "a.fixed.md").write_text("A.")
    before = version.current(release.ROOT)
    release.write_back("9.9.9", notes.notes("9.9.9", "2026-11-22", notes.read(changes)), tmp_path)
    assert "## 9.9.9 (2026-11-22)\n\n### Fixed\n\n- A.\n" in (tmp_path / "CHANGELOG.md").read_text()
    assert list(changes.iterdir()) == []
    for place in version.PLACES:
        text = (tmp_path / place).read_text()
        assert "9.9.9" in text, place
        assert before not in text, place
    assert version.current(release.ROOT) == before


@pytest.mark.parametrize("word", ["1.0", "v1.0.0", "1.0.0-dev", "1.0.0 "])
def test_what_is_no_version_is_refused(word: str, tmp_path: Path) -> None:
    with pytest.raises(version.VersionError, match="write MAJOR"):
        version.set_version(tmp_path, word)


def test_no_other_file_carries_the_version() -> None:
    """Among files that a release changes or packs; the locks and the migration page mean others' versions."""
    now = version.current(release.ROOT)
    pattern = re.compile(rf"(?<![\d.]){re.escape(now)}(?![\d.]*\d)")
    read = {name: (release.ROOT / name).read_text() for name in tracked() if name.endswith(KINDS)}
    holders = {name for name, text in read.items() if pattern.search(text)}
    assert holders - {"docs/migration.md"} <= set(version.PLACES)
