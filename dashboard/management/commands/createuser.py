"""`manage.py createuser`: make a user of the console and show the password once."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from dashboard.roles import ROLES
from dashboard.users import make_user
from serving.contracts.actors import COMMAND_LINE
from serving.contracts.errors import DomainError
from serving.prepared import prepared_database


class Command(BaseCommand):
    """Makes a user of the console and prints the password; it is not shown again."""

    help = (
        "Make a user of the console and print the password, to be changed at the first sign-in. It is not shown again."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Name and role."""
        parser.add_argument("name")
        parser.add_argument("--role", required=True, choices=tuple(ROLES), help="what the user may do")

    def handle(self, *_args: Any, **options: Any) -> None:
        """Make the user."""
        try:
            with prepared_database():
                made = make_user(options["name"], role=options["role"], author=COMMAND_LINE)
        except DomainError as error:
            raise CommandError(error.message) from None
        self.stdout.write(made.password)
