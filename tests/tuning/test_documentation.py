"""The README tells of the tunables what their definition says."""

from pathlib import Path

from serving.contracts.tunables import describe
from serving.tuning.documentation import tunables_table

README = Path(__file__).resolve().parent.parent.parent / "README.md"


def test_readme_has_the_table_that_the_definition_gives() -> None:
    assert tunables_table() in README.read_text(), "write it anew with `manage.py tunables table`"


def test_table_has_a_row_for_every_tunable() -> None:
    rows = tunables_table().splitlines()[2:]
    assert [row.split("`")[1] for row in rows] == [spec.name for spec in describe()]
