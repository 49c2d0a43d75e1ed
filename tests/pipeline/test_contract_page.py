"""The page of tables and fields is what the contract says."""

from pathlib import Path

import pytest

from graynode.pipeline.contract_page import main, page
from graynode.pipeline.schema import TABLES

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_page_is_up_to_date() -> None:
    """``docs/metrics.md`` and ``pipeline/schema.py`` never part; ``make docs`` joins them."""
    assert DOCS.read_text(encoding="utf-8") == page()


def test_every_raw_field_is_on_the_page() -> None:
    """No field of a table that is sent goes undocumented."""
    text = page()
    for table in TABLES.values():
        assert f"## `{table.name}`" in text
        if table.topic:
            for field in table.fields:
                assert f"| `{field.name}` |" in text
                assert field.help


def test_check_says_the_way_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A page that differs fails the check and names the command that mends it."""
    stale = tmp_path / "metrics.md"
    stale.write_text("old")
    assert main(["--check", str(stale)]) == 1
    assert "make docs" in capsys.readouterr().err
    assert main([str(stale)]) == 0
    assert main(["--check", str(stale)]) == 0
