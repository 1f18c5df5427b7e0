"""Build Dockerfiles with buildah on a stand-in for the official Python image, with no registry at hand.

The stand-in is a Debian of the machine's own mirror with Debian's Python, copied to /usr/local where the
official image has its own. pip's configuration and the certificates of this machine are mounted into the
build, so that it gets its wheels from wherever this machine does; they never become part of the image.
"""

import hashlib
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from localcluster import apt, archives, images, needs, runtime
from localcluster.layout import CACHE, IMAGES, RUN
from localcluster.normalise import normalise
from localcluster.progress import run_steps
from localcluster.tools import locked, run, succeeds

BASE_IMAGE = "docker.io/library/python:3.11-slim-bookworm"
BASE_PACKAGES = "python3,python3-venv,ca-certificates"
BASE_CONFIG = {
    "Env": ["PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"],
    "Cmd": ["python3"],
}
# Commands run in the new root; what only takes space in an image goes.
BASE_SETUP = """
python3 -m venv --copies /usr/local
ln -sf python3 /usr/local/bin/python
rm -rf /var/cache/apt/archives/*.deb /var/lib/apt/lists/* /usr/share/doc /usr/share/man /usr/share/locale
rm -f /etc/resolv.conf
"""
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
BUILDAH = ("buildah", "--root", str(CACHE / "buildah"), "--runroot", str(RUN / "buildah"),
           "--storage-driver", "overlay")  # fmt: skip
_TIMESTAMP = int(datetime.fromisoformat(archives.EPOCH).timestamp())


def build_image(tag: str, dockerfile: Path, context: Path, build_args: Mapping[str, str]) -> None:
    """Build an image and import it into every running node; nodes that start later get it too.

    Raises ClusterError with the build's last lines.
    """
    needs.check_machine()
    needs.install_packages()
    export_image(tag, dockerfile, context, build_args)
    with runtime.exclusive():
        run_steps([(f"import {images.full_name(tag)} into the nodes", runtime.import_images)])


def export_image(tag: str, dockerfile: Path, context: Path, build_args: Mapping[str, str]) -> None:
    """Build an image for nodes that start later. No node needs to run.

    buildah keeps every layer, so what has not changed is not built again, and an image that came out the
    same is not exported again. Raises ClusterError with the build's last lines.
    """
    # A separate lock: a build takes minutes, and other commands need not wait for it.
    with locked(CACHE / "build-image.lock"):
        name, log = images.full_name(tag), CACHE / "build-image.log"
        log.write_text("")
        base = _base_archive()
        steps = [
            ("take the base image", lambda: _take_base(base)),
            (f"build {name}", lambda: _build(name, dockerfile, context, build_args, log)),
            (f"export {name}", lambda: _export(name, log)),
        ]
        if not base.exists():
            steps.insert(0, ("make the base image of Debian packages (40 s)", lambda: _make_base(base)))
        run_steps(steps)


def save_image(tag: str, dockerfile: Path, context: Path, build_args: Mapping[str, str], target: Path) -> None:
    """Build an image into a docker-archive, for no cluster. Raises ClusterError with the build's last lines."""
    needs.check_machine()
    needs.install_packages()
    with locked(CACHE / "build-image.lock"), tempfile.TemporaryDirectory(prefix="building-", dir=CACHE) as folder:
        name, log, base = images.full_name(tag), CACHE / "build-image.log", _base_archive()
        log.write_text("")
        if not base.exists():
            _make_base(base)
        _take_base(base)
        _build(name, dockerfile, context, build_args, log)
        built = Path(folder) / "image.tar"
        run(*BUILDAH, "push", name, f"docker-archive:{built}:{name}", log=log)
        normalise(built, target, name)


def _base_archive() -> Path:
    recipe = repr((apt.RELEASE, BASE_PACKAGES, BASE_CONFIG, BASE_SETUP))
    return IMAGES / f"python-base-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}.tar"


def _make_base(target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    mirror, log = apt.sources()[0].uri, CACHE / "debootstrap.log"
    with tempfile.TemporaryDirectory(prefix="building-", dir=CACHE) as folder:
        root, layer, archive = (Path(folder) / part for part in ("root", "layer.tar", "image.tar"))
        # In a mount namespace, so that nothing stays mounted when this is interrupted.
        run("unshare", "--mount", "debootstrap", "--variant=minbase", f"--include={BASE_PACKAGES}",
            apt.RELEASE, root, mirror, log=log)  # fmt: skip
        run("chroot", root, "sh", "-ec", BASE_SETUP, log=log)
        run("tar", "-C", root, "--numeric-owner", "--sort=name", "-cf", layer, ".", log=log)
        archives.write_archive(archive, BASE_IMAGE, layer, BASE_CONFIG)
        archive.rename(target)


def _take_base(archive: Path) -> None:
    _, version = archives.image_of(archive)
    if _image_id(BASE_IMAGE) != version:
        run(*BUILDAH, "pull", f"docker-archive:{archive}")


def _image_id(name: str) -> str | None:
    if not succeeds(*BUILDAH, "inspect", "--type", "image", name):
        return None
    return run(*BUILDAH, "inspect", "--type", "image", "--format", "{{.FromImageID}}", name).strip()


def _build(tag: str, dockerfile: Path, context: Path, build_args: Mapping[str, str], log: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        arguments = [f"--build-arg={name}={value}" for name, value in build_args.items()]
        volumes = [f"--volume={source}:{target}:ro" for source, target in mounts(Path(folder))]
        # One time for all files and images: a layer whose content did not change keeps its digest.
        run(*BUILDAH, "build", "--isolation", "chroot", "--pull-never", "--layers", "--format", "docker",
            f"--timestamp={_TIMESTAMP}", *volumes, *arguments, "--tag", tag, "--file", dockerfile, context,
            log=log)  # fmt: skip


def _export(tag: str, log: Path) -> None:
    archive = IMAGES / f"{hashlib.sha256(tag.encode()).hexdigest()[:12]}.tar"
    if _image_id(tag) != images.version_of(tag):
        new = archive.with_suffix(".new")
        new.unlink(missing_ok=True)
        run(*BUILDAH, "push", tag, f"docker-archive:{new}:{tag}", log=log)
        new.rename(archive)
        images.remember(archive)


def mounts(folder: Path) -> list[tuple[str, str]]:
    """(path here, path in the build) of the certificates, and of pip's configuration and all that it names."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True,
                            check=True).stdout  # fmt: skip
    settings = pip_settings(listed)
    mounts = [(CERTIFICATES, CERTIFICATES)] if Path(CERTIFICATES).exists() else []
    if "cert" in settings and Path(settings["cert"]).exists():
        shutil.copy(settings["cert"], folder / "cert.pem")
        mounts = [(str(folder / "cert.pem"), CERTIFICATES)]
        settings["cert"] = CERTIFICATES
    paths = sorted(local_paths(settings) - {CERTIFICATES})
    mounts += [(path, path) for path in paths if Path(path).exists()]
    lines = [f"{name} = {value}" for name, value in settings.items()]
    (folder / "pip.conf").write_text("\n".join(["[global]", *lines, ""]))
    return [*mounts, (str(folder / "pip.conf"), "/etc/pip.conf")]


def local_paths(settings: Mapping[str, str]) -> set[str]:
    """The folders and files of this machine that pip's settings name; an index links to files beside it."""
    found = set()
    for name, value in settings.items():
        for word in value.split():
            path = word.removeprefix("file://").rstrip("/")
            if path.startswith("/"):
                parent = str(Path(path).parent)
                found.add(parent if name.endswith("index-url") and parent != "/" else path)
    return found


def pip_settings(listed: str) -> dict[str, str]:
    """What `pip config list` prints, by plain name; the environment goes before the files, as in pip."""
    settings: dict[str, str] = {}
    for scope in ("global.", "install.", ":env:."):
        for line in listed.splitlines():
            name, _, value = line.partition("=")
            if name.startswith(scope):
                settings[name.removeprefix(scope)] = " ".join(shlex.split(value)).replace("\\n", " ")
    return settings
