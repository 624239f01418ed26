#!/usr/bin/env python3
"""Footplate's command line."""

import contextlib
import logging
import os
import sys

_PROCESSES = ("serve", "runweb", "runengine", "runmonitor", "runjobs")


def main() -> None:
    """Run one of Footplate's or Django's commands."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "serving.config.settings")
    from django.core.management import execute_from_command_line
    from django.db import OperationalError

    try:
        execute_from_command_line(sys.argv)
    except OperationalError as error:  # of Django's own commands: ours say more
        reason = (str(error).strip().splitlines() or ["it does not answer"])[0]
        where = "see FOOTPLATE_HOME and DATABASE_URL"
        raise SystemExit(f"footplate: the database cannot be used ({reason}); {where}") from None
    if sys.argv[1:2] and sys.argv[1] in _PROCESSES:
        _leave()


def _leave() -> None:
    """End this process, which has closed all that it had open, at once: Python would take apart what it has loaded,
    half a second long, and whoever stops the whole waits for each process in turn."""
    logging.shutdown()
    with contextlib.suppress(OSError):  # the terminal may be gone
        sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
