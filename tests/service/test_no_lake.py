"""Where no lake is, every answer is "nothing": the commands that ask it say that none is there."""

from pathlib import Path

import pytest
from people_site import NOW, Site

NONE = "no lake is at"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("sql", "-c", "FROM incident_now"), 0),
        (("explain", "abc"), 1),
        (("explain", "--job", "7"), 1),
        (("label", "abc", "true", "--why", "x"), 2),
        (("nodes",), 1),
        (("lemons",), 1),
        (("audit",), 2),
    ],
)
def test_it_is_said_and_the_way_out_with_it(words: tuple[str, ...], code: int, tmp_path: Path) -> None:
    """On standard error, so that what a machine reads stays as it is; no lake is made by asking."""
    site = Site(tmp_path)
    ended = site.run(*words)
    assert ended.returncode == code
    assert f"{NONE} {tmp_path / 'lake'}" in ended.stderr
    assert "--config FILE" in ended.stderr
    assert NONE not in ended.stdout
    assert not (tmp_path / "lake").exists()


def test_a_lake_that_is_there_needs_no_words(tmp_path: Path) -> None:
    """Nor does an object store, which is not looked at."""
    site = Site(tmp_path)
    site.incident("aaaa1111-0000-5000-8000-000000000001", "n1", NOW)
    assert site.run("nodes").stderr == ""
