"""The `tfgpu` command: finds the verb, runs it, and turns every error into one line and an exit code."""

from __future__ import annotations

import difflib
import errno
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click

from tfgpujob import __version__
from tfgpujob.cli import verbs
from tfgpujob.cli.output import coloured
from tfgpujob.exits import CliError, Exit
from tfgpujob.printable import printable

_NUMBERS: Final = {"a valid integer range": "a whole number", "a valid float range": "a number"}
"""click's names for them."""


_ELSEWHERE: Final = {
    "apply": "submit",
    "cancel": "suspend or delete",
    "compare": "ui",
    "create": "submit",
    "ls": "list",
    "ps": "list",
    "rm": "delete",
    "start": "resume",
    "status": "describe",
    "stop": "suspend",
    "train": "run or submit",
}
"""Verbs of other tools, which may look like another one of ours."""
_WHOLE_SENTENCE: Final = 200
"""Characters; click would cut the first sentence of a help text short."""


@contextmanager
def _interrupt_ends() -> Iterator[None]:
    """^C ends the process at once: a KeyboardInterrupt during an import may be raised as another exception."""
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


class _Verbs(click.Group):
    """Loads a verb only when it is called: `tfgpu explain` must not wait for the import of the Kubernetes client."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return verbs.names()

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        with _interrupt_ends():
            command: click.Command = verbs.module(cmd_name).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            known = _ELSEWHERE.get(args[0])
            close = [known] if known else difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            if args[0].endswith((".py", ".yaml", ".yml")):
                close = [f"run {args[0]} --local"]
            if not close:
                raise
            raise click.UsageError(f"{error.message.rstrip('.')} (did you mean {close[0]}?)", ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, its_verbs in verbs.by_heading().items():
            commands = [(verb, self.get_command(ctx, verb)) for verb in its_verbs]
            with formatter.section(heading):
                formatter.write_dl(
                    [(verb, c.get_short_help_str(_WHOLE_SENTENCE)) for verb, c in commands if c is not None]
                )

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(int(code)), code.meaning) for code in Exit])


@click.group(
    cls=_Verbs,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="tfgpu")
@click.pass_context
def tfgpu(context: click.Context) -> None:
    """Train with TensorFlow: on this machine, or as a TFGPUJob in a Kubernetes cluster."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns its exit code."""
    program = "kubectl tfgpu" if Path(sys.argv[0]).name == "kubectl-tfgpu" else "tfgpu"
    try:
        code = tfgpu.main(arguments, prog_name=program, standalone_mode=False)
        sys.stdout.flush()
    except CliError as error:
        return _fail(str(error), error.code)
    except click.ClickException as error:
        return _fail(_usage(error, program), Exit.USAGE)
    except (click.Abort, KeyboardInterrupt):
        return int(Exit.INTERRUPTED)
    except OSError as error:
        return _unwritten(error)
    except SystemExit as leaving:
        if leaving.code != 1:
            raise
        # Raised as click does for a broken pipe: the only way without standalone mode.
        return _seen_enough()
    return int(code or Exit.OK)


def _seen_enough() -> int:
    """The reader, such as `head`, has closed the pipe. Python would report it again when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return int(Exit.OK)


def _unwritten(error: OSError) -> int:
    if isinstance(error, BrokenPipeError):
        return _seen_enough()
    if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
        raise error
    if error.filename is None:
        _seen_enough()
    where = error.filename or "standard output"
    return _fail(f"{where}: {error.strerror}; make room, and try again", Exit.NO_SPACE)


def _usage(error: click.ClickException, program: str) -> str:
    message = " ".join(error.format_message().split()).rstrip(".")
    for theirs, ours in _NUMBERS.items():
        message = message.replace(theirs, ours)
    context = getattr(error, "ctx", None)
    if isinstance(error, click.NoSuchOption) and not error.possibilities and context:
        message += _where(error.option_name, context)
    return f"{message}; see {context.command_path if context else program} --help"


def _where(option: str, context: click.Context) -> str:
    """Where an option that the verb does not have belongs."""
    if context.command is tfgpu:
        return "; write it after the command"
    if not any(one.type is click.UNPROCESSED for one in context.command.params):
        return ""
    others = [verb for verb in ("run", "submit") if verb != context.info_name]
    has = [verb for verb in others if any(option in one.opts for one in verbs.module(verb).command.params)]
    return "".join(
        ("; the script's own options go after --", *(f"; tfgpu {verb} has one of this name" for verb in has))
    )


def _fail(message: str, code: Exit) -> int:
    for line in message.splitlines():
        click.echo(f"{coloured('tfgpu:', 'red', sys.stderr, bold=True)} {printable(line)}", err=True)
    return int(code)
