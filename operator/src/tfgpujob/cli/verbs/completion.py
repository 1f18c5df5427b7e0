"""`tfgpu completion`: the script that lets a shell complete verbs, flags and values."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import get_completion_class

from tfgpujob.cli.verbs import Heading
from tfgpujob.exits import CliError

PLACE: Final = Heading.THIS_TOOL, 10


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    For instance in ~/.bashrc: source <(tfgpu completion bash)
    """
    made = get_completion_class(shell)
    if made is None:
        raise CliError(f"no completion for {shell}", "use bash, zsh or fish")
    click.echo(made(context.find_root().command, {}, "tfgpu", "_TFGPU_COMPLETE").source())
