"""Options that several verbs share, so that they are spelled and explained once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from tfgpujob.cli.output import Format


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


job_file = click.argument("file", metavar="JOB.YAML", type=click.Path(allow_dash=True))
"""The file that holds one TFGPUJob, perhaps among other objects; `-` is standard input."""
