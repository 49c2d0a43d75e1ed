"""``graynode report``: sent to a receiver that listens, written to a path, and what is said where that cannot be."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest
from http_receiver import Answer, HttpReceiver

from graynode.dashboards.report.model import Headline, Report, Section
from graynode.pipeline.lake import Lake
from graynode.pipeline.lake_format import conform
from graynode.service import report as role
from graynode.service import report_send
from graynode.service.config import Config, ConfigError, parse

# A plugin of apprise imports it when the first address is looked at.
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")
MONDAY = datetime(2026, 11, 16, tzinfo=UTC)
REPORT = Report(
    "prod", "2026-W47", MONDAY, datetime(2026, 11, 23, tzinfo=UTC), MONDAY, True,
    [Headline("Failures of nodes", "3", "week before 2")], [Section("a", "A <part>")], [f"thing {i}" for i in range(8)],
)  # fmt: skip


def settings(folder: Path, *urls: str) -> Config:
    file = folder / "urls"
    file.write_text("\n".join(["# whom", *urls]), encoding="utf-8")
    return parse({"report": {"urls_file": str(file)}, "lake": {"path": str(folder / "lake")}}, "test")


def test_the_first_page_is_the_message_and_the_whole_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What arrives at a service that takes files: title, figures, what is not known, and the page itself."""
    with HttpReceiver(lambda *_: Answer(200)) as receiver:
        port = receiver.url.rsplit(":", 1)[1].split("/")[0]
        assert report_send.send(settings(tmp_path, f"json://127.0.0.1:{port}/hook"), REPORT) == 0
    told = receiver.requests[0].data
    assert told["title"] == "Weekly report, prod: week 2026-W47"
    assert "Failures of nodes: 3 (week before 2)" in told["message"]
    assert "- thing 5\n- and 2 more" in told["message"]
    page = base64.b64decode(told["attachments"][0]["base64"]).decode()
    assert page.startswith("<!DOCTYPE html>")
    assert "A &lt;part&gt;" in page
    assert "address 1 (json://…): sent" in capsys.readouterr().out


def test_one_that_refuses_is_named_without_its_secret(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The others are told all the same; exit code 1; no password is shown."""
    with HttpReceiver(lambda number, _: Answer(403 if number == 0 else 200)) as receiver:
        port = receiver.url.rsplit(":", 1)[1].split("/")[0]
        urls = [f"json://user:s3cret@127.0.0.1:{port}/", f"json://127.0.0.1:{port}/"]
        assert report_send.send(settings(tmp_path, *urls), REPORT) == 1
    said = capsys.readouterr()
    assert "address 1 (json://…): did not take it" in said.err
    assert "address 2 (json://…): sent" in said.out
    assert "s3cret" not in said.out + said.err


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nosuch://x/secret", "is none that apprise knows"), ("syslog://", "acts on this machine only"),
        ("json://192.0.2.1/secret", "beyond this machine can be read"), ("no address at all secret", "is none that"),
    ],
)  # fmt: skip
def test_a_wrong_address_is_said_before_the_work(tmp_path: Path, url: str, said: str) -> None:
    """Its number and kind, never the rest; and a missing or empty file."""
    with pytest.raises(ConfigError, match=said) as error:
        role.run(settings(tmp_path, url), "2026-W47", send=True, now=datetime(2026, 12, 1, tzinfo=UTC))
    assert "secret" not in str(error.value).replace(str(tmp_path), "")


def test_without_a_file_of_addresses_it_says_where_to_name_one(tmp_path: Path) -> None:
    """``--send`` without ``report.urls_file``; an empty file; one that is not there."""
    with pytest.raises(ConfigError, match=r"report\.urls_file"):
        report_send.addresses(Config())
    with pytest.raises(ConfigError, match="holds no address"):
        report_send.addresses(settings(tmp_path))
    with pytest.raises(ConfigError, match="cannot be read"):
        report_send.addresses(parse({"report": {"urls_file": str(tmp_path / "none")}}, "test"))


def test_an_empty_lake_is_said_and_nothing_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A report that knows nothing is none: exit 1, which lake and cluster, and no file that looks like a quiet week."""
    config = parse({"lake": {"path": str(tmp_path / "lake")}}, "test")
    out, now = tmp_path / "week.md", datetime(2026, 12, 1, tzinfo=UTC)
    assert role.run(config, "2026-W47", "md", out, now=now) == 1
    assert f"the lake {tmp_path / 'lake'} has nothing of cluster" in capsys.readouterr().err
    assert not out.exists()


def test_a_path_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    """A lake with one event is enough for a report, which is there whole or not at all."""
    config = parse({"lake": {"path": str(tmp_path / "lake")}}, "test")
    told = {"ts": datetime(2026, 11, 18, tzinfo=UTC), "cluster": config.cluster, "node_id": "m", "kind": "xid"}
    Lake(config.lake.path).write("event", conform("event", pl.DataFrame([told])))
    out, now = tmp_path / "week.md", datetime(2026, 12, 1, tzinfo=UTC)
    assert role.run(config, "2026-W47", "md", out, now=now) == 0
    assert out.read_text(encoding="utf-8")
    with pytest.raises(ConfigError, match="cannot be written"):
        role.run(config, "2026-W47", "md", tmp_path / "no" / "week.md", now=now)
    assert list(tmp_path.glob("*.part")) == []
