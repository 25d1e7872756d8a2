"""`manage.py create_operator`: creates the first operator of a new installation."""

from getpass import getpass
from typing import Any

from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import transaction

from apps.quotas.models import User
from apps.quotas.principals import SYSTEM
from apps.quotas.services import audit, tokens


class Command(BaseCommand):
    """Command that creates an operator."""

    help = (
        "Create an operator: asks for a password (or reads one line from standard input) and prints an API token. "
        "Example: manage.py create_operator ada"
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the user name."""
        parser.add_argument("name")

    def handle(self, *args: Any, **options: Any) -> None:
        """Create the user and a token. Raises CommandError for an existing name or a weak password."""
        name = options["name"]
        user = User(username=name, is_operator=True)
        password = getpass("Password: ")
        try:
            user.full_clean(exclude=["password"])
            validate_password(password, user)
        except ValidationError as error:
            raise CommandError("; ".join(error.messages)) from error
        with transaction.atomic():
            user.set_password(password)
            user.save()
            audit.record(SYSTEM, "person.operator", audit.Named("person", name), after={"is_operator": True})
            _, text = tokens.create(principal=SYSTEM, name=f"{name}'s first token", tenant=None, user=user)
        self.stderr.write(f"Operator {name} made. The API token, shown only now:")
        self.stdout.write(text)
