"""Links to files outside docs/ lead somewhere in the repository only: the site shows their paths instead."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_LINK = re.compile(r"\[([^\]\n]+)\]\((\.\./[^)#\s]+)[^)]*\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Called by mkdocs for each page."""
    docs = Path(config["docs_dir"]).resolve()
    folder = Path(page.file.abs_src_path).resolve().parent

    def shown(match: re.Match[str]) -> str:
        target = (folder / match[2]).resolve()
        if target.is_relative_to(docs):
            return match[0]
        return f"{match[1]} (`{target.relative_to(docs.parent)}`)"

    return _LINK.sub(shown, markdown)
