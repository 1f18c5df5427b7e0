"""Pages as HTML. Jinja2 escapes all text, and control characters are removed."""

from __future__ import annotations

from importlib.resources import files
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tfgpujob.printable import printable
from tfgpujob.ui.seen import cut
from tfgpujob.units import duration

_PACKAGE: Final = "tfgpujob.ui"
STATIC: Final = {"style.css": "text/css", "refresh.js": "text/javascript"}


def _shown(value: Any) -> Any:
    """Applied to every value that a template writes, except the output of another template."""
    return printable(cut(value)) if isinstance(value, str) and not isinstance(value, Markup) else value


_ENVIRONMENT: Final = Environment(
    loader=PackageLoader(_PACKAGE),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=_shown,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.filters["duration"] = duration


def html(template: str, page: object, root: str = "./", *, session: bool = False) -> str:
    """The rendered template. `root`: link from there to the list. `session`: it has a button that ends the login."""
    return _ENVIRONMENT.get_template(template).render(page=page, root=root, session=session)


def static(name: str) -> bytes:
    """A file of STATIC."""
    return files(_PACKAGE).joinpath("static", name).read_bytes()
