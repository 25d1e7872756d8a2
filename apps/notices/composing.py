"""Text of a mail: subject, lines by kind, and how to change or end the notices."""

from collections import defaultdict
from collections.abc import Sequence
from email.utils import parseaddr

from django.conf import settings
from django.core.mail import EmailMessage
from django.urls import reverse
from django.utils import timezone

from apps.notices.choosing import mail_link, unsubscribe_path
from apps.notices.models import Mail, Notice, NoticeKind, NoticeSettings
from apps.notices.timing import zone_of

# Lines of one mail; the rest is counted.
MOST_LINES = 50


def compose(mail: Mail, notices: Sequence[Notice], total: int, choices: NoticeSettings) -> EmailMessage:
    """Return the mail of these lines; `total`: their number with those that are too many to show."""
    text = (
        "The mail server works: your notices will come like this." if mail.is_test else _text(notices, total, choices)
    )
    user = mail.user
    lines = [text, "", "--"]
    if page := mail_link(reverse("notices")):
        lines.append(f"Choose what you are told: {page}")
    headers = {
        # The same at each attempt, so that a mailbox can recognise a repetition.
        "Message-ID": f"<{mail.uid.hex}@{_domain()}>",
        "Auto-Submitted": "auto-generated",
    }
    if end := mail_link(unsubscribe_path(user)):
        lines.append(f"End all notices: {end}")
        headers |= {"List-Unsubscribe": f"<{end}>", "List-Unsubscribe-Post": "List-Unsubscribe=One-Click"}
    return EmailMessage(_subject(mail, notices, total), "\n".join(lines), None, [user.email], headers=headers)


def _subject(mail: Mail, notices: Sequence[Notice], total: int) -> str:
    """Return one line: titles have no line breaks (`words.plain`), and Django refuses any."""
    if mail.is_test:
        return "[gpucloud] Test of your notices"
    first = f"{notices[0].tenant}: {notices[0].title}" if notices[0].tenant else notices[0].title
    return f"[gpucloud] {first}" if total == 1 else f"[gpucloud] {first} (and {total - 1} more)"


def _text(notices: Sequence[Notice], total: int, choices: NoticeSettings) -> str:
    groups: dict[str, list[Notice]] = defaultdict(list)
    for notice in notices:
        groups[notice.kind].append(notice)
    lines: list[str] = []
    for kind, found in groups.items():
        lines += [f"{NoticeKind(kind).label} ({len(found)})", ""]
        for notice in found:
            at = timezone.localtime(notice.at, zone_of(choices))
            where = f" ({notice.tenant})" if notice.tenant else ""
            lines.append(f"  {at:%Y-%m-%d %H:%M %Z}  {notice.title}{where}")
            lines += [f"      {text}" for text in (notice.detail, notice.url) if text]
        lines.append("")
    if total > len(notices):
        lines.append(f"… and {total - len(notices)} more, which the pages show.")
    return "\n".join(lines).rstrip()


def _domain() -> str:
    return parseaddr(settings.DEFAULT_FROM_EMAIL)[1].rpartition("@")[2] or "gpucloud.invalid"
