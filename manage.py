#!/usr/bin/env python3
"""Footplate's command line."""

import os
import sys


def main() -> None:
    """Run one of Footplate's or Django's commands."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "serving.config.settings")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
