"""Records of this app in the operators' record pages."""

from apps.notices.models import Mail, Notice, NoticeSettings
from gpucloud.web.records import register

register(NoticeSettings, "user", "quiet_hours", "digest_hour", "last_mail_at", find=("user__username",))
register(Mail, "uid", "user", "state", "attempts", "sent_at", find=("uid", "user__username"), narrow=("state",))
register(Notice, "user", "tenant", "kind", "title", "due_at", find=("user__username", "title"), narrow=("kind",))
