"""Records the transcripts again from the cluster of KUBECONFIG: `python -m tests.conformance.record`.

They are written to the folder of its version. What equals the next older version is not kept.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from tests.conformance.scripts import SCRIPTS
from tests.conformance.test_conformance import OLDEST, folder_of, recorded, tell_real, versions


def main() -> None:
    kubeconfig = Path(os.environ["KUBECONFIG"])
    for name in sys.argv[1:] or SCRIPTS:
        version, entries = asyncio.run(tell_real(name, kubeconfig))
        older = [known for known in versions() if known < version]
        path = folder_of(version) / f"{name}.json"
        if version > OLDEST and older and entries == recorded(name, older[-1]):
            path.unlink(missing_ok=True)
            print(name, "as", older[-1])
            continue
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(entries, indent=1) + "\n")
        print(name, len(entries))


if __name__ == "__main__":
    main()
