"""Which files a run of tests loads."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.choosing import may_have_chosen

ALL_HEAVY = "pytestmark = pytest.mark.heavy\n"
ONE_MODEL = "@pytest.mark.model\ndef test_one(): ...\n"


@pytest.mark.parametrize(
    ("text", "expression", "is_loaded"),
    [
        ("", "not heavy and not model", True),
        ("", "model", False),
        (ALL_HEAVY, "not heavy and not model", False),
        (ALL_HEAVY, "heavy and not model", True),
        (ONE_MODEL, "not heavy and not model", True),
        (ONE_MODEL, "model", True),
        (ALL_HEAVY + ONE_MODEL, "model and not heavy", False),
        (ALL_HEAVY + ONE_MODEL, "model and heavy", True),
        (ALL_HEAVY, "django_db", True),
    ],
)
def test_a_file_is_loaded_where_one_of_its_tests_may_be_asked_for(
    text: str, expression: str, is_loaded: bool, tmp_path: Path
) -> None:
    path = tmp_path / "test_it.py"
    path.write_text(text)
    assert may_have_chosen(path, expression) is is_loaded
