"""What the site needs beyond the pages as they stand in the repository."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_LINK = re.compile(r"\[([^\]\n]+)\]\((\.\./[^)#\s]+)[^)]*\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Called by mkdocs for each page."""
    docs = Path(config["docs_dir"]).resolve()
    return _without_outside_links(markdown, Path(page.file.abs_src_path).resolve().parent, docs)


def _without_outside_links(markdown: str, folder: Path, docs: Path) -> str:
    """A link to a file outside docs/ leads somewhere in the repository only: the site shows its path instead."""

    def shown(match: re.Match[str]) -> str:
        target = (folder / match[2]).resolve()
        return match[0] if target.is_relative_to(docs) else f"{match[1]} (`{target.relative_to(docs.parent)}`)"

    return _LINK.sub(shown, markdown)
