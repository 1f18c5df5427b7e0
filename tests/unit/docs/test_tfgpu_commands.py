"""Every `tfgpu` command in the documentation is one that the tool takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
from tests.unit.docs.test_docs import FENCE, PAGES, blocks, shown

from tfgpujob.cli.main import tfgpu


def commands(page: Path) -> list[str]:
    """Lines of plain blocks, and inline pieces, that begin with `tfgpu`; what follows `# ` is a remark."""
    text = page.read_text()
    lines = [line.strip() for block in blocks(page, "") for line in block.replace("\\\n", " ").splitlines()]
    found = [*lines, *re.findall(r"`([^`]+)`", FENCE.sub("", text))]
    return [
        re.sub(r"\s+#.*", "", " ".join(line.split())) for line in found if line.startswith(("tfgpu ", "kubectl tfgpu "))
    ]


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_commands_of_the_tool_parse(page: Path) -> None:
    for command in commands(page):
        words = [word for word in shlex.split(command)[1:] if word != "tfgpu"]
        context = click.Context(tfgpu)
        if words[0].startswith("-"):
            continue
        verb = tfgpu.get_command(context, words[0])
        assert verb is not None, command
        if not re.search(r"[\[…<]", command):
            verb.make_context(words[0], words[1:], parent=context)


def test_there_are_commands() -> None:
    assert any(commands(page) for page in PAGES)
