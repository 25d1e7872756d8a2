"""Addresses of all pages: the pages' own routes, with names and numbers of existing objects."""

import re

from apps.console.urls import urlpatterns

# `nodes/<slug:name>`: the parameter, and its kind.
PARAMETER = re.compile(r"([\w-]+)/<\w+:\w+>")
# Endpoints, not pages.
LEFT_OUT = {"sign-in", "single-sign-on", "single-sign-on-return", "sign-out"}


def addresses(**known: object) -> list[str]:
    """Return every route's path.

    `known` names one object of each kind: `nodes`, `gpus`, `claims`, … Routes that take posts only are included and
    answer 405; routes of a kind without an object are left out.
    """
    routes = [str(route.pattern) for route in urlpatterns if route.name not in LEFT_OUT]
    return [
        "/" + PARAMETER.sub(lambda found: f"{found[1]}/{known[found[1]]}", route)
        for route in routes
        if set(PARAMETER.findall(route)) <= known.keys()
    ]
