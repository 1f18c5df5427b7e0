"""`tfgpu logs`: the logs of all replicas."""

from __future__ import annotations

import sys
from typing import Final

import click

from tfgpujob.cli.cluster import cluster_verb, job_name, refuse_elsewhere, to_copy
from tfgpujob.cli.output import coloured, log_line
from tfgpujob.cli.verbs import Heading
from tfgpujob.client import Client, LogLine
from tfgpujob.describe.progress_words import progress_of
from tfgpujob.names import Role

PLACE: Final = Heading.IN_A_CLUSTER, 50

_COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "bright_cyan", "bright_yellow", "bright_green")


@click.command()
@job_name
@click.option("-f", "--follow", is_flag=True, help="Follow the logs, through restarts, until the job has finished.")
@click.option(
    "--tail", type=click.IntRange(0), is_flag=False, flag_value=10, help="Begin with this many lines of each."
)
@click.option("--role", type=click.Choice([str(role) for role in Role]), help="Only of this role.")
@click.option("--index", type=click.IntRange(min=0), help="Only the replica of this index.")
@click.option("--no-prefix", is_flag=True, help="Leave out which replica says it.")
@click.option("--json", "as_json", is_flag=True, help="Leave the trainer's progress as the JSON that it prints.")
@cluster_verb
def command(
    client: Client,
    name: str,
    *,
    follow: bool,
    tail: int | None,
    role: str | None,
    index: int | None,
    no_prefix: bool,
    as_json: bool,
) -> None:
    """Print the logs of all replicas, each in its own colour."""
    refuse_elsewhere(client, name)
    printed, text = False, _Text(prefix=not no_prefix, as_json=as_json)
    for lines in client.log_batches(name, follow=follow, tail=tail, role=role, index=index):
        printed = printed or bool(lines)
        click.echo("".join(map(text.of, lines)), nl=False)
    if not printed:
        what = f"no such replica of {name} has printed anything, or its pod is gone; tfgpu describe {name} shows pods"
        click.echo(to_copy(what, name), err=True)


class _Text:
    """Prints lines. One that is too long arrives in pieces."""

    def __init__(self, *, prefix: bool, as_json: bool) -> None:
        self._prefix, self._as_json = prefix, as_json
        self._terminal = sys.stdout.isatty()
        self._unfinished = ""
        """The pod whose line is incomplete."""

    def of(self, line: LogLine) -> str:
        goes_on = self._unfinished == line.pod
        between = "\n" if self._unfinished and not goes_on else ""
        self._unfinished = "" if line.ends else line.pod
        said = line.text if self._as_json else progress_of(line.text) or line.text
        text = log_line(said) if self._terminal else said
        end = "\n" if line.ends else ""
        start = f"{_who(line)} | " if self._prefix and not goes_on else ""
        return f"{between}{start}{text}{end}"


def _who(line: LogLine) -> str:
    colour = _COLOURS[(list(Role).index(Role(line.role)) + line.index) % len(_COLOURS)]
    return coloured(f"{line.role}-{line.index}", colour)
