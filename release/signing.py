"""A detached signature of SHA256SUMS with the release manager's key, by OpenSSH's ssh-keygen."""

import subprocess
from pathlib import Path

NAMESPACE = "tfgpujob"
"""What a signature is for, so that one made for something else with the same key is refused."""


def check(key: Path) -> None:
    """Before the images are built, which takes long. Raises RuntimeError."""
    if not key.is_file():
        raise RuntimeError(f"there is no key {key}; fix: KEY is a private key, as `ssh-keygen -t ed25519` makes one")


def sign(sums: Path, key: Path) -> Path:
    """Write SHA256SUMS.sig. `key` is a private key, or the public half of one that ssh-agent holds.

    Raises RuntimeError with ssh-keygen's words.
    """
    try:
        # Standard input stays a terminal's, which a passphrase may be asked for at.
        done = subprocess.run(
            ["ssh-keygen", "-q", "-Y", "sign", "-f", str(key), "-n", NAMESPACE, str(sums)],
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    except FileNotFoundError as error:
        raise RuntimeError("ssh-keygen is not installed; fix: install OpenSSH's client, or leave KEY out") from error
    if done.returncode:
        raise RuntimeError(f"{key} can't sign: {done.stderr.strip()}; fix: KEY is a private key of OpenSSH")
    return sums.with_name(f"{sums.name}.sig")
