"""Submit a job, follow it, and read its metrics: `python examples/client.py [JOB.YAML]`."""

import sys
from pathlib import Path

import yaml

from tfgpujob.client import Client

EXAMPLES = Path(__file__).parent


def main(file: Path) -> int:
    with Client() as client:
        job = client.submit(yaml.safe_load(file.read_text()))
        print(f"{job.namespace}/{job.name} is created")
        for seen in client.watch(job.name):
            progress = seen.status.progress
            if progress is not None:
                print(f"{seen.status.phase}: step {progress.step}/{progress.total_steps}, loss {progress.loss}")
            if seen.finished:
                break
        ended = client.get(job.name)
        print(f"{ended.name}: {ended.status.phase} after {ended.status.restarts or 0} restarts")
        for line in client.logs(job.name, tail=1):
            print(f"{line.pod}: {line.text}")
    return 0 if ended.succeeded else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else EXAMPLES / "digits-multiworker.yaml"))
