"""The frame of each page: its head, its style and the filters of its template. Jinja escapes all names."""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from typing import Any, Final

import jinja2

_FRAME: Final = "frame.html"


def page(package: str, name: str, **filters: Callable[..., Any]) -> jinja2.Template:
    """The template of a page, which extends ``frame.html``: its blocks are title, style and body.

    Args:
        package: the package whose folder ``templates`` has the file.
        name: the name of the file.
        filters: by their names in the template.
    """

    def source(asked: str) -> str:
        of = "pipeline.pages" if asked == _FRAME else package
        return resources.files(of).joinpath("templates", asked).read_text(encoding="utf-8")

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, loader=jinja2.FunctionLoader(source)
    )
    environment.filters |= filters
    return environment.get_template(name)
