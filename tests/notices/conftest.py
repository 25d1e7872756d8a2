"""A mail server on loopback, and people with addresses."""

from collections.abc import Iterator
from contextlib import contextmanager
from email.message import EmailMessage
from email.parser import BytesParser
from email.policy import default
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, Envelope, Session

from apps.quotas.models import User
from tests.cast import cast, real_cast, recorded_cast
from tests.ports import free_port
from tests.scheduling.clock import clock


class MailServer:
    """A real SMTP server; `refuse` answers a recipient, if it returns a text."""

    def __init__(self) -> None:
        self.came: list[EmailMessage] = []
        self.to: list[str] = []
        self.refusal = ""

    async def handle_RCPT(  # noqa: N802 - the name that aiosmtpd calls
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if self.refusal:
            return self.refusal
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802 - likewise
        assert isinstance(envelope.content, bytes)
        message = BytesParser(policy=default).parsebytes(envelope.content)
        assert isinstance(message, EmailMessage)
        self.came.append(message)
        self.to += envelope.rcpt_tos
        return "250 OK"

    def text(self, at: int = -1) -> str:
        """Return the text of a mail."""
        body = self.came[at].get_body()
        assert body is not None
        text: str = body.get_content()
        return text


@contextmanager
def serve_mail(server: MailServer) -> Iterator[int]:
    """Serve SMTP; yield the port."""
    port = free_port()
    controller = Controller(server, hostname="127.0.0.1", port=port, ready_timeout=30)
    controller.start()
    try:
        yield port
    finally:
        controller.stop()


@pytest.fixture
def server(settings: Any) -> Iterator[MailServer]:
    """Serve SMTP; the product's settings lead to it."""
    it = MailServer()
    with serve_mail(it) as port:
        settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
        settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", port
        settings.EMAIL_USE_TLS, settings.EMAIL_HOST_USER, settings.EMAIL_HOST_PASSWORD = False, "", ""
        settings.PUBLIC_URL = "https://gpus.example.org"
        yield it


def give_addresses() -> None:
    """Give everybody a mail address."""
    for user in User.objects.all():
        User.objects.filter(pk=user.pk).update(email=f"{user.username}@example.org")


__all__ = ["cast", "clock", "real_cast", "recorded_cast"]
