"""The findings as a table for people and as JSON for programs."""

import msgspec

from agent.check.findings import Findings

MARKS = {"ok": "ok  ", "warning": "WARN", "failed": "FAIL"}


def as_table(findings: Findings) -> str:
    """Return one line per finding, a line with the fix below each problem, and which process found them."""
    checks = findings.checks
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        lines.append(f"{MARKS[check.state]}  {check.name.ljust(width)}  {check.detail}")
        if check.cure:
            lines.append(f"{' ' * (width + 8)}→ {check.cure}")
    failed = sum(check.state == "failed" for check in checks)
    warned = sum(check.state == "warning" for check in checks)
    lines.append(f"{failed} failed, {warned} warnings, {len(checks) - failed - warned} in order")
    lines.append(findings.words)
    return "\n".join(lines)


def as_json(findings: Findings) -> str:
    """Return the findings as JSON, with `ok`: true if nothing failed."""
    ok = all(check.state != "failed" for check in findings.checks)
    facts = {"ok": ok, "seen_by": findings.seen_by, "seen_how": findings.words, "checks": findings.checks}
    return msgspec.json.format(msgspec.json.encode(facts), indent=2).decode()
