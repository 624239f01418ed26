"""`manage.py importmodel`: bring a model into a folder that the engine can load."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from serving.engine.models.importer import DEFAULT_NAME, ImportProblem, import_model
from serving.engine.models.problem import ModelFolderProblem


class Command(BaseCommand):
    """Parses, imports, reports."""

    help = "Import a model: a GGUF file, a Hugging Face folder, or (without SOURCE) the default model."
    requires_system_checks: list[str] = []  # noqa: RUF012 (Django's own declaration)

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("source", nargs="?", type=Path, help=f"GGUF file or folder; by default {DEFAULT_NAME}")
        parser.add_argument("--name", help="the model's name, which is its folder's; by default the source's")
        parser.add_argument("--into", type=Path, help="where models are kept; by default FOOTPLATE_HOME/models")

    def handle(self, *_: Any, source: Path | None, name: str | None, into: Path | None, **__: Any) -> None:
        folder = into or settings.FOOTPLATE_HOME / "models"
        try:
            import_model(source, into=folder.absolute(), name=name, report=self.stdout.write)
        except (ImportProblem, ModelFolderProblem) as problem:
            raise CommandError(str(problem)) from None
