"""`make release VERSION=x`: all that a release consists of, in build/release/x.

A dry run unless --write is given: nothing in the checkout changes, and nothing is ever uploaded. Made twice from one
commit, the files have equal bytes.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from localcluster.helm import HelmError
from localcluster.layout import ClusterError
from tests import tiers

from release import archive, manifest, notes, sbom, signing
from release.images import IMAGES, save
from release.version import VersionError, set_version

ROOT = Path(__file__).resolve().parents[1]
CHART = "charts/tfgpujob"
PACKAGES = ("operator", "trainer_image", "trainer_image/src/tfgpujob_contract")
DEFINITIONS = ("tfgpujobs.yaml", "tfgpujobs-no-cel.yaml")
_NO_REGISTRY = '\nimageRegistry: ""\n'


def make(
    version: str, registry: str, target: Path, images: Iterable[str] = (), *, key: Path | None = None
) -> list[Path]:
    """Write the files of a release to `target`, which must not exist; with `key`, sign them.

    Raises VersionError, FragmentError, HelmError, ClusterError, RuntimeError.
    """
    if key is not None:
        signing.check(key)
    epoch = int(_git("log", "-1", "--format=%ct"))
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".making-", dir=target.parent) as scratch:
        tree, made = Path(scratch) / "tree", Path(scratch) / "made"
        made.mkdir()
        _checkout(tree)
        set_version(tree, version)
        _set_registry(tree / CHART / "values.yaml", registry)
        for package in PACKAGES:
            _build(tree / package, made, epoch)
        for name in DEFINITIONS:
            shutil.copyfile(tree / "crds" / name, made / name)
        archive.write(made / f"tfgpujob-{version}.tgz", tree / CHART, "tfgpujob", epoch)
        for name, oldest in manifest.FILES.items():
            (made / name).write_text(manifest.install_yaml(tree / CHART, version, name, oldest))
        for image in IMAGES.values():
            sbom.write(image, tree, version, made, epoch)
        for name in images:
            save(IMAGES[name], tree, version, registry, made)
        day = datetime.fromtimestamp(epoch, UTC).date().isoformat()
        (made / "notes.md").write_text(notes.notes(version, day, notes.read(tree / "release" / "changes")))
        (made / "SHA256SUMS").write_text("".join(f"{_digest(file)}  {file.name}\n" for file in sorted(made.iterdir())))
        if key is not None:
            signing.sign(made / "SHA256SUMS", key)
        made.rename(target)
    return sorted(target.iterdir())


def write_back(version: str, section: str, root: Path = ROOT) -> None:
    """What the commit of the release holds: the version, the changelog, and no fragments."""
    set_version(root, version)
    changelog = root / "CHANGELOG.md"
    changelog.write_text(notes.with_notes(changelog.read_text(), section))
    for fragment in (root / "release" / "changes").iterdir():
        fragment.unlink()


def _checkout(tree: Path) -> None:
    """The files that git knows, as they are now; their modes and times are those of a release, not of this checkout."""
    for name in _git("ls-files", "-z").split("\0"):
        source, copy = ROOT / name, tree / name
        if name and source.is_file():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)
            copy.chmod(0o755 if source.stat().st_mode & 0o100 else 0o644)


def _set_registry(values: Path, registry: str) -> None:
    text = values.read_text()
    assert _NO_REGISTRY in text
    values.write_text(text.replace(_NO_REGISTRY, f"\nimageRegistry: {json.dumps(registry)}\n"))


def _build(package: Path, target: Path, epoch: int) -> None:
    """A wheel and a source archive, by setuptools of the tools' environment."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "PYTHONDONTWRITEBYTECODE": "1"}
    for step in ("build_wheel", "build_sdist"):
        code = f"import sys, setuptools.build_meta as b; print(b.{step}(sys.argv[1]))"
        command = [sys.executable, "-c", code, str(target)]
        # A wheel keeps the modes of its files.
        done = subprocess.run(
            command, cwd=package, env=environment, umask=0o022, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{package.name}: {done.stderr}")
    archive.rewrite(target / done.stdout.splitlines()[-1], epoch)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def main(arguments: list[str] | None = None) -> int:
    """Ends with one line of JSON."""
    parser = argparse.ArgumentParser("make release", description=__doc__)
    parser.add_argument("version")
    parser.add_argument("--registry", default="", help="stands before both images in the chart and in install.yaml")
    parser.add_argument("--images", nargs="*", choices=IMAGES, default=list(IMAGES), help="those to build: all of them")
    parser.add_argument("--key", type=Path, help="private key of OpenSSH that signs the checksums")
    parser.add_argument("--write", action="store_true", help="also set the version and collect the changelog here")
    options = parser.parse_args(arguments)
    if options.write and (old := tiers.stale(tiers.read(), datetime.now(UTC))):
        print("make release: these shards have not passed lately:", *old, sep="\n  ", file=sys.stderr)
        print("  fix: make test-deep SHARD=K/6 for each, or make test-all; commit tests/ran.json", file=sys.stderr)
        return 1
    target = ROOT / "build" / "release" / options.version
    try:
        if target.exists():
            shutil.rmtree(target)
        files = make(options.version, options.registry, target, options.images, key=options.key)
        if options.write:
            write_back(options.version, (target / "notes.md").read_text())
    except (VersionError, notes.FragmentError, HelmError, ClusterError, RuntimeError) as error:
        fix = f"\n  fix: {error.fix}" if isinstance(error, ClusterError) else ""
        print(f"make release: {error}{fix}", file=sys.stderr)
        return 1
    for file in files:
        print(f"{file.stat().st_size:>10,}  {file.relative_to(ROOT)}", file=sys.stderr)
    said = {"name": "release", "ok": True, "version": options.version, "files": len(files), "written": options.write}
    print(json.dumps(said))
    return 0


if __name__ == "__main__":
    sys.exit(main())
