"""Template tags and filters of all pages; built in, so that no template loads them."""

import secrets
from datetime import datetime
from functools import lru_cache
from itertools import count
from typing import Any

from django import template
from django.templatetags.static import static
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import get_language, gettext_noop
from django.utils.translation import gettext as _

from gpucloud.web.badges import badge
from gpucloud.web.browsers import name_browser
from gpucloud.web.glossary import FIELDS, WORDS
from gpucloud.web.navigation import locate, sections

register = template.Library()

SPRITE = "vendor/icons-3.51.0.svg"
GIB = 1024
# Popover ids must be unique in a page, and pages are composed of fragments that are refreshed one by one. A page of one
# server may get a fragment from another, so each process starts at a random number.
NUMBERS = count(secrets.randbelow(10**9))
# Format arguments: tone, label, ceiling and use in percent.
METER = """\
<svg class="meter {}" viewBox="0 0 100 8" preserveAspectRatio="none" role="img" aria-label="{}">\
<rect class="meter-ground" x="0" y="0" width="100" height="8" />\
<rect class="meter-ceiling" x="0" y="0" width="{}" height="8" />\
<rect class="meter-used" x="0" y="0" width="{}" height="8" /></svg>"""
# The largest unit of which there is at least one whole: (seconds, format).
UNITS = (
    (86400, gettext_noop("{0} d")),
    (3600, gettext_noop("{0} h")),
    (60, gettext_noop("{0} min")),
    (1, gettext_noop("{0} s")),
)


@register.simple_tag
@lru_cache(maxsize=1000)
def icon(name: str, extra: str = "") -> SafeString:
    """Return an icon of the sprite; screen readers skip it, because the text beside it says the same."""
    return format_html(
        '<svg class="icon {}" aria-hidden="true" focusable="false"><use href="{}#{}"></use></svg>',
        extra,
        static(SPRITE),
        name,
    )


@register.simple_tag
def state(name: str, progress: object = None) -> SafeString:
    """Return a state's badge: label, icon and colour; with its progress, such as `3/5`, where there is one."""
    return _state(name, f" {progress}" if progress else "", get_language())


@lru_cache(maxsize=1000)
def _state(name: str, more: str, _language: str | None) -> SafeString:
    # A list of hundreds of rows has few distinct states.
    shown = badge(name)
    return format_html(
        '<span class="state tone-{}" data-state="{}">{}{}{}</span>',
        shown.tone,
        name,
        icon(shown.icon),
        shown.label,
        more,
    )


@register.simple_tag
def ago(moment: datetime | None) -> SafeString | str:
    """Return the time since a moment; a script updates it while the page is open."""
    if moment is None:
        return _("never")
    seconds = max(0.0, (timezone.now() - moment).total_seconds())
    full = timezone.localtime(moment).strftime("%Y-%m-%d %H:%M:%S %Z")
    return format_html(
        '<time datetime="{}" title="{}" data-ago="{}">{}</time>',
        moment.isoformat(),
        full,
        f"{seconds:.1f}",
        _("{0} ago").format(duration(seconds)),
    )


@register.simple_tag
def ahead(moment: datetime) -> SafeString:
    """Return the time until a moment, as `in 12 min`; `now` if it has passed."""
    seconds = (moment - timezone.now()).total_seconds()
    full = timezone.localtime(moment).strftime("%Y-%m-%d %H:%M:%S %Z")
    words = _("in {0}").format(duration(seconds)) if seconds >= 1 else _("now")
    return format_html('<time datetime="{}" title="{}">{}</time>', moment.isoformat(), full, words)


@register.filter
def duration(seconds: float) -> str:
    """Format seconds as `84 ms`, `12 s`, `3 min`, `2 h`, `5 d`."""
    if seconds < 1:
        return _("{0} ms").format(f"{seconds * 1000:.0f}")
    size, unit = next((size, unit) for size, unit in UNITS if seconds >= size)
    return _(unit).format(f"{seconds / size:.0f}")


@register.filter
def microseconds(number: int) -> str:
    """Format microseconds as `840 µs`, `29 ms`, `1.2 s`."""
    if number < 1000:
        return f"{number} µs"
    return f"{number / 1000:.0f} ms" if number < 1_000_000 else f"{number / 1_000_000:.1f} s"


@register.filter
def mib(value: float | None) -> str:
    """Format mebibytes as `512 MiB`, `1.5 GiB`."""
    if value is None:
        return "–"
    if abs(value) >= GIB:
        return f"{value / GIB:.1f}".removesuffix(".0") + " GiB"
    return f"{value:.0f} MiB"


@register.filter
def coded(text: str) -> SafeString:
    """Format text between backticks as code; the command line shows the same text."""
    parts = enumerate(text.split("`"))
    return format_html_join("", "{}", ((format_html("<code>{}</code>", one) if at % 2 else one,) for at, one in parts))


@register.filter
def person(name: str) -> str:
    """Return who made something, without the kind: `anna`, `anna via token ci`."""
    return name.removeprefix("user:")


@register.filter
def browser(header: str) -> str:
    """Return the name of the browser that sends this header: `Firefox 140 on Linux`."""
    return name_browser(header)


@register.filter
def percent(value: float | None) -> str:
    """Format a percentage as `42 %`, or a dash if nothing was measured."""
    return "–" if value is None else f"{value:.0f} %"


@register.filter
def mig_profile(resource: str) -> str:
    """Return the profile of a quota's resource `mig/PROFILE`; empty: it is another resource."""
    before, _slash, profile = str(resource).partition("mig/")
    return "" if before else profile


@register.filter
def amount(value: int | None, resource: str) -> str:
    """Format an amount of a quota's resource; null is unlimited."""
    if value is None:
        return _("unlimited")
    return {"core_percent": f"{value} %", "memory_mib": mib(value), "host_memory_mib": mib(value)}.get(
        resource, str(value)
    )


@register.filter
def box_groups(field: Any) -> list[tuple[Any, list[dict[str, Any]]]]:
    """Return a field's check boxes in groups: a title, and the `name`, `value`, `label`, `selected`, `id` of each."""
    shown = field.field.widget.optgroups(field.html_name, [str(one) for one in field.value() or []])
    return [
        (title, [box | {"id": f"{field.auto_id}_{at}_{number}"} for number, box in enumerate(options)])
        for at, (title, options, _) in enumerate(shown)
    ]


@register.inclusion_tag("parts/navigation.html", takes_context=True)
def navigation(context: Any) -> dict[str, Any]:
    """Return the top bar's sections, and the places of the current one."""
    request = context["request"]
    # Set only if somebody is signed in.
    asking = getattr(request, "principal", None)
    admin = asking is not None and asking.may_administer
    open_to = sections(operator=getattr(request.user, "is_operator", False), admin=admin)
    section, place = locate(open_to, request.path)
    return {"sections": open_to, "here": section, "at": place, "path": request.path}


@register.inclusion_tag("parts/word.html")
def word(key: str, text: str = "") -> dict[str, Any]:
    """Return `text` as a button that explains the glossary's term; without a text a question mark.

    Raises KeyError if the glossary has no such term.
    """
    return {"key": key, "word": WORDS[key], "text": text, "number": next(NUMBERS)}


@register.inclusion_tag("parts/word.html")
def what(field: str) -> dict[str, Any]:
    """Return a question mark for a form field whose label is a glossary term; nothing for other fields."""
    key = FIELDS.get(field)
    return word(key) if key else {}


@register.simple_tag
def pick_box(listed: Any, row: Any) -> SafeString:
    """Return the cell with the check box of a row of a list; htmx keeps it when the rows are loaded again."""
    key, name = listed.pick_of(row)
    return format_html(
        '<td class="pick"><input type="checkbox" class="form-check-input" id="pick-{0}" name="pick" value="{0}" '
        'form="bulk" hx-preserve aria-label="{1}"></td>',
        key,
        _("Select {0}").format(name),
    )


@register.inclusion_tag("parts/bar.html")
def bar(parts: Any, label: str, field: str = "", whole: int = 100) -> dict[str, Any]:
    """Return a horizontal bar of a GPU, a segment per assignment; `label` describes it.

    With a `field`, the ends of segments can be dragged: they set that field of their share's form, out of `whole`.
    """
    return {"parts": parts, "label": label, "field": field, "whole": whole}


@register.simple_tag
def meter(
    used: float | None, label: str, ceiling: float | None = None, whole: float = 100, *, alarm: bool = True
) -> SafeString:
    """Return a thin bar of the amount in use, below a ceiling, out of a whole.

    A full bar has its own colour, and the label describes it; not without `alarm`: a GPU that is full is well used.
    """
    share = min(100.0, 100 * (used or 0) / whole) if whole else 100.0
    top = min(100.0, 100 * ceiling / whole) if ceiling is not None and whole else 0.0
    high = share >= 85 and ceiling is None
    tone = ("meter-full" if share >= 100 else "meter-high" if high else "") if alarm else ""
    # Not a template: a page has hundreds of them.
    return format_html(METER, tone, label, f"{top:.2f}", f"{share:.2f}")
