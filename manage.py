#!/usr/bin/env python3
"""Footplate's command line."""

import atexit
import contextlib
import logging
import os
import sys
import threading

_PROCESSES = ("serve", "runweb", "runengine", "runmonitor", "runjobs")
_has_ended_well = threading.Event()


def main() -> None:
    """Run one of Footplate's or Django's commands."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "serving.config.settings")
    if sys.argv[1:2] and sys.argv[1] in _PROCESSES:
        atexit.register(_leave)  # first, so that it is called last
    from django.core.management import execute_from_command_line
    from django.db import OperationalError

    try:
        execute_from_command_line(sys.argv)
    except OperationalError as error:  # of Django's own commands: ours say more
        reason = (str(error).strip().splitlines() or ["it does not answer"])[0]
        where = "see FOOTPLATE_HOME and DATABASE_URL"
        raise SystemExit(f"footplate: the database cannot be used ({reason}); {where}") from None
    _has_ended_well.set()


def _leave() -> None:
    """End this process at once, when its threads have done what they had begun and all others were told of its end:
    Python would take apart what it has loaded, half a second long, and whoever stops the whole waits for each process
    in turn."""
    if not _has_ended_well.is_set():
        return
    logging.shutdown()
    with contextlib.suppress(OSError):  # the terminal may be gone
        sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
