"""Signing in and out: Django's own views with our words."""

from typing import Any

from django.contrib.auth.forms import AuthenticationForm


class SignInForm(AuthenticationForm):
    """Says one thing for every wrong pair: which of the two was wrong helps nobody but a guesser."""

    error_messages = {
        "invalid_login": "That name and password do not match. Passwords are case-sensitive.",
        "inactive": "This account is switched off: ask an operator.",
    }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for field in self.fields.values():
            field.widget.attrs["class"] = "form-control"
        self.fields["username"].label = "Name"
