"""The findings for people and for programs."""

import msgspec

from agent.wire import Check

MARKS = {"ok": "ok  ", "warning": "WARN", "failed": "FAIL"}


def as_table(checks: list[Check]) -> str:
    """A line for each, and under what is not right a line that says what to do."""
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        lines.append(f"{MARKS[check.state]}  {check.name.ljust(width)}  {check.detail}")
        if check.cure:
            lines.append(f"{' ' * (width + 8)}→ {check.cure}")
    failed = sum(check.state == "failed" for check in checks)
    warned = sum(check.state == "warning" for check in checks)
    lines.append(f"{failed} failed, {warned} to look at, {len(checks) - failed - warned} in order")
    return "\n".join(lines)


def as_json(checks: list[Check]) -> str:
    """The same, with `ok`: whether nothing failed."""
    ok = all(check.state != "failed" for check in checks)
    return msgspec.json.format(msgspec.json.encode({"ok": ok, "checks": checks}), indent=2).decode()
