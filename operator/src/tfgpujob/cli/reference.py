"""docs/reference/cli.md, generated from the commands: `python -m tfgpujob.cli.reference --write`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import click

from tfgpujob.cli import verbs
from tfgpujob.cli.main import tfgpu
from tfgpujob.exits import Exit

PAGE: Final = Path("docs/reference/cli.md")
_HEAD: Final = """# The command line

Generated from the tool by `make crds`. `tfgpu` is also `kubectl tfgpu`. Each command takes `-h`. Colours are shown on a
terminal only, and never with NO_COLOR.
"""


def reference() -> str:
    """The page."""
    parts = (line for part in verbs.by_heading().items() for line in _group(*part))
    return "\n".join([_HEAD, *_exit_codes(), *parts])


def _exit_codes() -> Iterator[str]:
    yield "## Exit codes\n\n| code | meaning |\n|---|---|"
    for code in Exit:
        yield f"| {int(code)} | {code.meaning} |"
    yield ""


def _group(heading: str, its_verbs: Sequence[str]) -> Iterator[str]:
    yield f"## {heading}\n"
    root = click.Context(tfgpu, info_name="tfgpu", **tfgpu.context_settings)
    for verb in its_verbs:
        command = tfgpu.get_command(root, verb)
        assert command is not None
        context = click.Context(command, info_name=verb, parent=root, max_content_width=100, terminal_width=100)
        yield f"### {verb}\n\n```text\n{command.get_help(context)}\n```\n"


def main(arguments: list[str]) -> int:
    if arguments != ["--write"]:
        sys.stderr.write("usage: python -m tfgpujob.cli.reference --write   (in the repository's root)\n")
        return 2
    PAGE.write_text(reference())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
