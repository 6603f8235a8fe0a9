"""Templates of a card or a story as a file; they stand beside this module."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

_FORMS = Environment(
    loader=PackageLoader("queueproof.report", "."),
    autoescape=select_autoescape(["html", "svg", "xml"]),
    undefined=StrictUndefined,
    keep_trailing_newline=True,
    trim_blocks=True,
    lstrip_blocks=True,
)


def filled_in(form: str, **facts: object) -> str:
    """A template with its facts.

    Args:
        form: The name of its file; what stands in HTML, SVG and XML is escaped.
    """
    return _FORMS.get_template(form).render(facts)
