"""Take the transcripts anew from the cluster that KUBECONFIG names: `python -m tests.conformance.record`."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from tests.conformance.scripts import SCRIPTS
from tests.conformance.test_conformance import TRANSCRIPTS, tell_real


def main() -> None:
    kubeconfig = Path(os.environ["KUBECONFIG"])
    TRANSCRIPTS.mkdir(exist_ok=True)
    for name in sys.argv[1:] or SCRIPTS:
        entries = asyncio.run(tell_real(name, kubeconfig))
        (TRANSCRIPTS / f"{name}.json").write_text(json.dumps(entries, indent=1) + "\n")
        print(name, len(entries))


if __name__ == "__main__":
    main()
