"""Messages of Slack's incoming webhooks: blocks of plain text, and a text for notifications.

Texts of tenants stand only where Slack parses nothing (`plain_text`); in `text`, the three characters that begin
mentions and links are escaped. Limits: https://docs.slack.dev/reference/block-kit/blocks
"""

from typing import Any, Final

from apps.quotas.services.webhooks.formats.words import CRITICAL, WARNING, Words, plain

# Most characters of a header, of a section, of a field of a section, and of an address.
HEADER, SECTION, FIELD, URL = 150, 3000, 2000, 3000
MOST_FIELDS = 10
MARKS: Final = {CRITICAL: "🔴 ", WARNING: "🟠 "}
# By https://docs.slack.dev/messaging/formatting-message-text
ESCAPES: Final = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


def message(words: Words) -> dict[str, Any]:
    """Return the body of the POST."""
    title = MARKS.get(words.severity, "") + words.title
    blocks: list[dict[str, Any]] = [{"type": "header", "text": _text(plain(title, HEADER))}]
    if words.sentence:
        blocks.append({"type": "section", "text": _text(plain(words.sentence, SECTION))})
    if words.facts:
        fields = [_text(f"{label}\n{value}"[:FIELD]) for label, value in words.facts[:MOST_FIELDS]]
        blocks.append({"type": "section", "fields": fields})
    if words.url and len(words.url) <= URL:
        button = {"type": "button", "text": _text("Open in gpucloud"), "url": words.url, "action_id": "open"}
        blocks.append({"type": "actions", "elements": [button]})
    return {
        "text": f"{title}: {words.sentence}".translate(ESCAPES),
        "blocks": blocks,
        "mrkdwn": False,
        "unfurl_links": False,
        "unfurl_media": False,
    }


def _text(text: str) -> dict[str, Any]:
    # Without emoji, or `:name:` in a claim's name would become one.
    return {"type": "plain_text", "text": text, "emoji": False}
