"""`tfgpu cp`: a file or folder that a job has written."""

from __future__ import annotations

import http.client
import tarfile
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Final

import click

from tfgpujob.cli.cluster import cluster_options, connected
from tfgpujob.cli.own_pods import once_it_works
from tfgpujob.cli.verbs import Heading
from tfgpujob.exits import CliError, Exit

PLACE: Final = Heading.IN_A_CLUSTER, 75
_ABSENT: Final = 404


@click.command()
@click.argument("source", metavar="NAME:PATH")
@click.argument("target", metavar="[TARGET]", default=".", type=click.Path(path_type=Path))
@click.option("--image", help="With Python in it. [default: the job's own]")
@cluster_options
def command(source: str, target: Path, *, image: str | None, context: str | None, namespace: str | None) -> None:
    """Copy a file or folder of a job to this machine, also after its end.

    PATH is relative to the folder that a script runs in, or else to the output directory, or begins with / as the job's
    pods see it; `.` is the whole folder. TARGET is an existing folder, or a new name. A small pod reads the job's
    volume. It is created with your rights, which must include pods and pods/portforward.
    """
    name, colon, path = source.partition(":")
    if not (name and colon and path.strip("/")):
        raise CliError(f"{source} is not NAME:PATH", "name a file of a job, such as train:model.keras")
    to = target / (Path(path).name or name) if target.is_dir() else target
    if to.is_dir() or not to.parent.is_dir():
        raise CliError(
            f"{to} is a folder that is there" if to.is_dir() else f"{to.parent}: no such folder", "name another"
        )
    with connected(context, namespace) as client, once_it_works(client.files(name, path, image=image)) as states:
        for seen in states:
            _fetch(f"{seen.url}/tar", source, to)
            click.echo(f"{source} is copied to {to}")
            return
    raise CliError(
        f"the pod that reads the files is gone, and perhaps {name} with it", "see tfgpu list", Exit.NOT_FOUND
    )


def _fetch(url: str, source: str, to: Path) -> None:
    """All of it, or nothing."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with tempfile.TemporaryDirectory(dir=to.parent, prefix=f".{to.name}.") as folder:
        try:
            with direct.open(url) as answer:
                with tarfile.open(fileobj=answer, mode="r|") as archive:
                    archive.extractall(folder, filter="data")
                answer.read()
        except urllib.error.HTTPError as error:
            if error.code != _ABSENT:
                raise
            fix = "its log names what a script has written at the end; give other files by their path in the pod"
            raise CliError(f"{source}: there is no such file", fix, Exit.NOT_FOUND) from error
        except (http.client.HTTPException, tarfile.TarError, OSError) as error:
            raise CliError(f"{source} could not be copied: {error}", "try again") from error
        Path(folder, "found").replace(to)
