"""The default model as the tests have it: imported once and kept for later runs.

As a program it does that, before groups of tests run side by side: of those that want it first, one would import it
with the processor time that the others leave, while they wait for it.
"""

from __future__ import annotations

from pathlib import Path

from serving.engine.models.importer import import_model

_FOLDER = Path(__file__).parent.parent / "var" / "test-models"


def import_default_model() -> Path:
    """The model's folder; sessions that run at once wait for the first."""
    return import_model(None, into=_FOLDER)


if __name__ == "__main__":
    import_default_model()
