"""Messages of Teams workflows ("When a Teams webhook request is received"): one Adaptive Card.

Texts of tenants stand only in text runs, in which Teams parses no Markdown. Version 1.4 is what all clients of Teams
show. Schema: https://adaptivecards.io/schemas/adaptive-card.json
"""

from typing import Any, Final

from apps.quotas.services.webhooks.formats.words import CRITICAL, INFO, WARNING, Words

SCHEMA = "http://adaptivecards.io/schemas/adaptive-card.json"
VERSION = "1.4"
CARD = "application/vnd.microsoft.card.adaptive"
COLORS: Final = {CRITICAL: "Attention", WARNING: "Warning", INFO: "Accent"}


def message(words: Words) -> dict[str, Any]:
    """Return the body of the POST."""
    body = [_line(_run(words.title, weight="Bolder", size="Large", color=COLORS[words.severity]))]
    if words.sentence:
        body.append(_line(_run(words.sentence)))
    body += [
        _line(_run(f"{label}: ", weight="Bolder"), _run(value)) | {"spacing": "Medium" if at == 0 else "None"}
        for at, (label, value) in enumerate(words.facts)
    ]
    card: dict[str, Any] = {"$schema": SCHEMA, "type": "AdaptiveCard", "version": VERSION, "body": body}
    if words.url:
        card["actions"] = [{"type": "Action.OpenUrl", "title": "Open in gpucloud", "url": words.url}]
    return {"type": "message", "attachments": [{"contentType": CARD, "contentUrl": None, "content": card}]}


def _line(*runs: dict[str, Any]) -> dict[str, Any]:
    return {"type": "RichTextBlock", "inlines": list(runs)}


def _run(text: str, **style: str) -> dict[str, Any]:
    return {"type": "TextRun", "text": text, **style}
