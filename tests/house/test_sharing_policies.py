"""The sharing policies' names: the same in C, the agent, the control plane, the CLI, the API and the docs."""

import ast
import json
import re
from pathlib import Path
from typing import get_args

import pytest
import yaml

from agent import wire
from apps.quotas.models.pool import SharingPolicy
from gpucloud_cli.fields import choices

ROOT = Path(__file__).resolve().parents[2]


def names_in_c() -> list[str]:
    """Return the names that the built library's ABI description gives, in the order of their numbers."""
    policies: dict[str, int] = json.loads((ROOT / "libvcuda" / "build" / "abi.json").read_text())["policies"]
    assert sorted(policies.values()) == list(range(len(policies))), "libvcuda's numbers of policies have gaps"
    return sorted(policies, key=policies.__getitem__)


def names_in_the_enum() -> list[str]:
    """Return the names of `enum vcuda_policy` in libvcuda's header, in the order of their numbers."""
    header = (ROOT / "libvcuda" / "include" / "vcuda_pages.h").read_text()
    found = {int(number): name.lower() for name, number in re.findall(r"VCUDA_POLICY_(\w+) = (\d+)", header)}
    return [found[number] for number in sorted(found)]


def names_in_benchmarks() -> list[str]:
    """Return the names that the benchmarks of libvcuda write into limits pages."""
    tree = ast.parse((ROOT / "benchmarks" / "shim" / "pages.py").read_text())
    values = (
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "POLICIES"
    )
    return list(ast.literal_eval(next(values)))


def names_in_docs() -> list[str]:
    """Return the first column of the table of policies in docs/shim.md."""
    text = (ROOT / "docs" / "shim.md").read_text(encoding="utf-8")
    table = text[text.index("| policy | guarantees") :].partition("\n\n")[0]
    return re.findall(r"^\| `(\w+)`", table, re.MULTILINE)


def names_in_openapi() -> list[str]:
    """Return the choices of a pool's sharing policy in the API's description."""
    document = (ROOT / "docs" / "openapi.yaml").read_text(encoding="utf-8")
    return list(yaml.load(document, Loader=yaml.CSafeLoader)["components"]["schemas"]["SharingPolicyEnum"]["enum"])


def names_in_api_docs() -> list[str]:
    """Return the first column of the table of policies in docs/api.md."""
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    table = text[text.index("| policy | alone on the GPU") :].partition("\n\n")[0]
    return re.findall(r"^\| `(\w+)`", table, re.MULTILINE)


def names_in_pagectl() -> list[str]:
    """Return the names in pagectl's help."""
    text = (ROOT / "libvcuda" / "tools" / "pagectl.c").read_text(encoding="utf-8")
    found = re.search(r"policies: ([\w ]+)\\n", text)
    assert found
    return found.group(1).split()


PLACES = {
    "enum vcuda_policy (libvcuda/include/vcuda_pages.h)": names_in_the_enum,
    "vcuda_policy_name (libvcuda/pages/limits.c), by abi.json": names_in_c,
    "SharingPolicy (apps/quotas/models/pool.py)": lambda: list(SharingPolicy.values),
    "cli/gpucloud_cli/schema.json": lambda: list(choices("POST pools/", "sharing_policy")),
    "benchmarks/shim/pages.py": names_in_benchmarks,
    "docs/shim.md": names_in_docs,
    "docs/api.md": names_in_api_docs,
    "libvcuda/tools/pagectl.c, usage": names_in_pagectl,
    "docs/openapi.yaml": names_in_openapi,
}
# Limits pages hold a policy's number, which these derive from the order.
NUMBERED = frozenset(place for place in PLACES if "libvcuda" in place or "benchmarks" in place)


@pytest.mark.parametrize("place", PLACES)
def test_every_place_names_the_agents_policies(place: str) -> None:
    expected, found = list(get_args(wire.Policy)), PLACES[place]()
    missing, unknown = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
    assert not missing, f"{place} lacks {', '.join(missing)}, which agent/wire.py has"
    assert not unknown, f"agent/wire.py lacks {', '.join(unknown)}, which {place} has"
    if place in NUMBERED:
        assert found == expected, f"{place} and agent/wire.py number the policies differently"
