"""The checksums of a release, signed by OpenSSH, and checked by what docs/releases.md says."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest
from release.signing import check, sign
from tests.pages import typed_by

pytestmark = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="OpenSSH's client is not installed here")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A release's folder of one file, and the key beside it."""
    (tmp_path / "notes.md").write_text("notes")
    (tmp_path / "SHA256SUMS").write_text(f"{hashlib.sha256(b'notes').hexdigest()}  notes.md\n")
    make_key(tmp_path / "release-key")
    return tmp_path


def make_key(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)], check=True)


def verify(folder: Path) -> list[int]:
    """The exit codes of the page's commands."""
    lines = [" ".join(words) for words in typed_by(__file__)]
    assert len(lines) == 3
    return [
        subprocess.run(["sh", "-c", line], cwd=folder, capture_output=True, check=False).returncode for line in lines
    ]


def test_who_has_the_public_key_can_check_a_release(folder: Path) -> None:
    assert sign(folder / "SHA256SUMS", folder / "release-key") == folder / "SHA256SUMS.sig"
    assert verify(folder) == [0, 0, 0]
    (folder / "notes.md").write_text("others")
    assert verify(folder) == [0, 0, 1]
    (folder / "SHA256SUMS").write_text(f"{hashlib.sha256(b'others').hexdigest()}  notes.md\n")
    assert verify(folder) == [0, 255, 0]


def test_the_signature_of_another_key_is_refused(folder: Path) -> None:
    make_key(folder / "other")
    sign(folder / "SHA256SUMS", folder / "other")
    assert verify(folder) == [0, 255, 0]


def test_two_signatures_of_equal_checksums_are_equal(folder: Path) -> None:
    first = sign(folder / "SHA256SUMS", folder / "release-key").read_bytes()
    (folder / "SHA256SUMS.sig").unlink()
    assert sign(folder / "SHA256SUMS", folder / "release-key").read_bytes() == first


def test_what_is_no_key_is_refused_with_the_fix(folder: Path) -> None:
    check(folder / "release-key")
    with pytest.raises(RuntimeError, match=r"there is no key .*none; fix: KEY is a private key"):
        check(folder / "none")
    with pytest.raises(RuntimeError, match=r"notes\.md can't sign: .*; fix: KEY is a private key of OpenSSH"):
        sign(folder / "SHA256SUMS", folder / "notes.md")
