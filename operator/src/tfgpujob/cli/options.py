"""Options that several verbs share."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from tfgpujob import names
from tfgpujob.cli.output import Format
from tfgpujob.convert.requirements import requirement_lines
from tfgpujob.exits import CliError, Exit


def output_option(*forms: Format) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`-o`, with the forms that a verb has; the first is the default."""
    return click.option(
        "-o",
        "--output",
        "form",
        type=click.Choice([str(form) for form in forms]),
        default=str(forms[0]),
        show_default=True,
        callback=lambda _context, _parameter, value: Format(value),
        help="How to show the result.",
    )


def _checked_page(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    if value.count("/") != 1:
        raise CliError(f"{value!r} is no Service", "write it as NAMESPACE/SERVICE")
    return value


page_option = click.option(
    "--page",
    callback=_checked_page,
    envvar="TFGPU_PAGE",
    default=names.PAGE_SERVICE,
    show_default=True,
    metavar="NAMESPACE/SERVICE",
    help="The Service of the operator's page, for deleted jobs; also by $TFGPU_PAGE.",
)

file = click.argument("file", metavar="JOB.YAML|TRAIN.PY", type=click.Path(allow_dash=True))
"""A file with TFGPUJobs, perhaps among other objects, or a Python file; `-` is standard input."""
workers = click.option(
    "--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Workers of a Python file's job."
)
gpus = click.option(
    "--gpus",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help="GPUs of each worker of a Python file's job.",
)


def refuse_of_python(file: str, *, besides: Collection[str]) -> None:
    """Raises CliError if an option was given that is for Python files: each one but these parameters."""
    for option in given(besides=besides):
        raise CliError(f"{option} is for a Python file", f"write it into {file}")


def given(*, besides: Collection[str]) -> dict[str, Any]:
    """The options of the command line with their values, without these parameters."""
    context = click.get_current_context()
    return {
        parameter.opts[0]: context.params[name]
        for parameter in context.command.params
        if (name := str(parameter.name)) not in besides
        and context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }


def code(text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`--code`, a folder that exists."""
    kind = click.Path(path_type=Path, exists=True, file_okay=False, resolve_path=True)
    return click.option("--code", type=kind, help=text)


requirements = click.option(
    "--requirements",
    type=click.Path(path_type=Path),
    help="A Python file's job: pip's requirements file, which is installed before it starts.",
)
"""`required` reads the file into the job."""


def required(file: Path) -> list[str]:
    """spec.trainer.requirements from that file. Raises CliError."""
    try:
        found = requirement_lines(file)
    except OSError as error:
        raise CliError(f"{file}: {error.strerror}", "name a requirements file", Exit.NOT_FOUND) from error
    except ValueError as error:
        raise CliError(str(error)) from error
    if not found:
        raise CliError(f"{file} asks for nothing", "leave --requirements out")
    return found
