"""What the console keeps of its users beside what Django does."""

from __future__ import annotations

from django.conf import settings
from django.contrib.sessions.base_session import AbstractBaseSession
from django.db import models

LONGEST_AUTHOR = 200


class ConsoleAccount(models.Model):
    """What Footplate itself keeps of a user. One without it has the password of its own choice and was never changed.

    `revision` grows with each change that an administrator or the user makes, so that a form which is out of date is
    known as such; `changed_by` and `changed_at` are of the last one.
    """

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, primary_key=True, related_name="console_account"
    )
    must_change_password = models.BooleanField(default=False)
    revision = models.PositiveIntegerField(default=0)
    changed_by = models.CharField(max_length=LONGEST_AUTHOR, blank=True)
    changed_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"account of user {self.pk}"


class ConsoleSession(AbstractBaseSession):
    """A session that knows whose it is: `user_id` is None where nobody is signed in."""

    # No foreign key: a session that is stored while its user is deleted must not fail.
    user_id = models.BigIntegerField(null=True, blank=True, db_index=True)

    class Meta(AbstractBaseSession.Meta):
        abstract = False

    @classmethod
    def get_session_store_class(cls) -> type:
        """What reads and writes these."""
        from dashboard.session_store import SessionStore

        return SessionStore
