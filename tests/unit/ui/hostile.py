"""Texts that try to do something on a page, jobs that are full of them, and what a page may be made of."""

from __future__ import annotations

import copy
import html.parser
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tfgpujob.ui.seen import Seen

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'; DROP TABLE jobs; --",
    "</textarea></title></style><svg onload=alert(1)>",
    "javascript:alert(1)",
    "{{ 7 * 7 }}{% raw %}",
    "\x00\x07\x1b]0;owned\x07\x9b31m\u202egnp.exe",
    "\ud800",
    "&lt;b&gt; &amp;",
    "x" * 3_000_000,
)
MAX_PAGE = 1 << 20
"""Bytes of a page about a job with megabytes in every field."""
ELEMENTS = {
    *("html", "head", "meta", "title", "link", "script", "body", "a", "header", "nav", "main", "section", "h1", "h2"),
    *("p", "ol", "ul", "li", "dl", "div", "dt", "dd", "span", "br", "strong", "details", "summary", "pre", "code"),
    *("table", "caption", "thead", "tbody", "tr", "th", "td", "form", "label", "select", "option", "input", "button"),
    *("figure", "figcaption", "svg", "desc", "line", "path", "text", "rect"),
}


class Reader(html.parser.HTMLParser):
    """What a page is made of."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def all_of(self, tag: str, **wanted: str) -> list[dict[str, str | None]]:
        return [found for name, found in self.elements if name == tag and wanted.items() <= found.items()]


def harmless(page: str) -> Reader:
    """It has our elements alone, no script but ours, and no way out."""
    assert len(page.encode()) < MAX_PAGE
    read = Reader(page)
    assert {name for name, _ in read.elements} <= ELEMENTS
    for name, attributes in read.elements:
        assert not [key for key in attributes if key.startswith("on") or key == "style"], (name, attributes)
        for key in {"href", "src", "action"} & attributes.keys():
            assert re.match(r"(\.\./|\./|jobs/|compare$|#main$|data:,$)", attributes[key] or ""), attributes
    assert len(read.all_of("script")) == 1
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", page.replace("\n", ""))
    return read


KEPT = {
    *("uid", "creationTimestamp", "lastTransitionTime", "firstTimestamp", "startedAt", "startTime", "completionTime"),
    *("time", "type", "labels", "ownerReferences", "namespace", "name", "phase", "failed"),
}


def poisoned(value: Any, text: str) -> Any:
    """The same with that text in place of every other, but for what says what kind of thing it is."""
    if isinstance(value, Mapping):
        return {key: inner if key in KEPT else poisoned(inner, text) for key, inner in value.items()}
    if isinstance(value, list):
        return [poisoned(inner, text) for inner in value]
    return text if isinstance(value, str) and value not in {"True", "False"} else value


def poisoned_job(found: Seen, text: str) -> Seen:
    spoilt = copy.deepcopy({**found.job})
    spoilt["status"] = poisoned(spoilt["status"], text)
    for one in spoilt["status"].get("conditions", ()):
        one["status"] = "True" if one["type"] in {"Accepted", "Running"} else "False"
    spoilt["metadata"]["name"] = spoilt["metadata"]["namespace"] = text
    spoilt["spec"]["trainer"] = {text[:100]: text, "params": {"x": [text]}}
    spoilt["spec"]["image"] = text
    return replace(
        found,
        job=spoilt,
        events=[{**one, "reason": text, "message": text} for one in found.events],
        series={text[:64]: [(1, 1.0), (2, 2.0)], f"val_{text[:64]}": [(1, 1.0)]},
        logs={text: [text] * 20, "other": [text]},
        unknown=[text],
    )
