"""`manage.py createkey`: make an API key and show it once."""

from __future__ import annotations

import datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from serving.admission.keys import OFFERED_SCOPES
from serving.admission.services import create_key
from serving.contracts.errors import DomainError
from serving.prepared import prepared_database


class Command(BaseCommand):
    """Makes an API key and prints it; it is not shown again."""

    help = "Make an API key for a tenant and print it. It is not shown again."

    def add_arguments(self, parser: CommandParser) -> None:
        """Tenant, label, scopes, expiry."""
        parser.add_argument("tenant", nargs="?", default="default", help="made where there is none of that name")
        parser.add_argument("--label", default="", help="what the key is for")
        parser.add_argument("--scopes", default="generate", help="separated by commas: " + ", ".join(OFFERED_SCOPES))
        parser.add_argument("--expires-days", type=int, help="days until it ends; never without this")

    def handle(self, *_args: Any, **options: Any) -> None:
        """Make the key."""
        days: int | None = options["expires_days"]
        if days is not None and days < 1:
            raise CommandError("--expires-days must be at least 1")
        expires_at = None if days is None else timezone.now() + datetime.timedelta(days=days)
        scopes = [scope.strip() for scope in options["scopes"].split(",") if scope.strip()]
        try:
            with prepared_database():
                key = create_key(options["tenant"], label=options["label"], scopes=scopes, expires_at=expires_at)
        except DomainError as error:
            raise CommandError(error.message) from None
        self.stdout.write(key.text)
