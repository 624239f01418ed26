"""What is said when a model folder cannot be served."""

from __future__ import annotations

from pathlib import Path


class ModelFolderProblem(Exception):
    """A model folder is refused: names the folder, the field, file or tensor at fault, and what is supported."""

    def __init__(self, folder: Path, subject: str, problem: str) -> None:
        super().__init__(f"model folder {folder}: {subject}: {problem}")
        self.folder = folder
        self.subject = subject
        self.problem = problem
