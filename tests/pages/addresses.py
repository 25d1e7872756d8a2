"""Where every page is: the pages' own routes, with the names and numbers of things that are there."""

import re

from apps.console.urls import urlpatterns

# `nodes/<slug:name>`: what is named, and of which kind it is.
PARAMETER = re.compile(r"([\w-]+)/<\w+:\w+>")
# Doors, not pages.
LEFT_OUT = {"sign-in", "single-sign-on", "single-sign-on-return", "sign-out"}


def addresses(**known: object) -> list[str]:
    """Every route's path. `known` names one thing of each kind: `nodes`, `gpus`, `claims`, … Those that only take
    posts are among them and answer 405; those of a kind of which none is named are left out.
    """
    routes = [str(route.pattern) for route in urlpatterns if route.name not in LEFT_OUT]
    return [
        "/" + PARAMETER.sub(lambda found: f"{found[1]}/{known[found[1]]}", route)
        for route in routes
        if set(PARAMETER.findall(route)) <= known.keys()
    ]
