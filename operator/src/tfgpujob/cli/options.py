"""Options that several verbs share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

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


page_option = click.option(
    "--page",
    envvar="TFGPU_PAGE",
    default=names.PAGE_SERVICE,
    show_default=True,
    metavar="NAMESPACE/SERVICE",
    help="The Service of the operator's page, for deleted jobs; also by $TFGPU_PAGE.",
)

job_file = click.argument("file", metavar="JOB.YAML", type=click.Path(allow_dash=True))
"""A file with one TFGPUJob, perhaps among other objects; `-` is standard input."""


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
