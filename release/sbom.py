"""What is in an image: a CycloneDX bill of the Python packages that its lock names, with their hashes, and of our own.

What the base image brings (Debian's packages, Python itself) is not in it: the builder chooses the base.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from release.images import Image

_CONTRACT = "tfgpujob-contract"


def write(image: Image, tree: Path, version: str, target: Path, epoch: int) -> None:
    """Raises RuntimeError with the tool's words."""
    lock = tree / image.lock
    file = target / image.file(version, "cdx.json")
    command = [sys.executable, "-m", "cyclonedx_py", "requirements", "--no-validate", "--output-reproducible"]
    project = tree / Path(image.lock).parts[0] / "pyproject.toml"
    done = subprocess.run(
        [*command, "--of", "JSON", "--pyproject", str(project), "-o", str(file), str(lock)],
        env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{file.name}: {done.stderr}")
    bill = json.loads(file.read_text())
    # The project takes its version from the code, where the tool does not look for it.
    component = bill["metadata"]["component"]
    component["version"] = version
    # The lock has what is installed from elsewhere, and this is built beside the project.
    contract = {"bom-ref": _CONTRACT, "purl": f"pkg:pypi/{_CONTRACT}@{version}", "name": _CONTRACT, "version": version}
    bill["components"].append({**contract, "type": "library", "licenses": component["licenses"]})
    file.write_text(json.dumps(bill, indent=2, sort_keys=True) + "\n")
