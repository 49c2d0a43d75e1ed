"""The collector over its parts: one that fails, none at all, its place in ``host``, and what it costs."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any, ClassVar

import landing_kit
import node_files
import pytest
from hypothesis import given
from hypothesis import strategies as st
from landing_kit import CLUSTER, Log, at, message
from service_programs import Node

from graynode.collectors.base import NoSource, Round
from graynode.collectors.health import Health
from graynode.collectors.host import Host
from graynode.collectors.services.collector import Services
from graynode.collectors.services.edac import Edac
from graynode.collectors.services.ipmi import parse_info, records
from graynode.collectors.services.look import Happening, Look, Seen
from graynode.collectors.services.mounts import parse_mountinfo, parse_statfs, watched
from graynode.collectors.services.nvme import parse_smart
from graynode.collectors.services.program import PATH, Runner
from graynode.collectors.services.units import UNITS, Units, parse_show
from graynode.pipeline.schema import TABLES
from graynode.service.agent_parts import Given, make_one, probes
from graynode.service.config import parse


class Told:
    """A part that says what it is told to say."""

    name: ClassVar[str] = "told"

    def __init__(self, *seen: Seen | Exception | None) -> None:
        self.absent, self.seen = "", list(seen)
        self.kept: Any = None

    def look(self, round_: Round) -> Seen | None:
        said = self.seen.pop(0) if self.seen else None
        if isinstance(said, Exception):
            raise said
        return said

    def host_fields(self) -> dict[str, Any]:
        return {}

    def memory(self) -> Any:
        return {"kept": 1}

    def remember(self, kept: Any) -> None:
        self.kept = kept

    def close(self) -> None: ...


def test_part_that_raises_costs_itself(tmp_path: Path) -> None:
    """A defect in one source is one row of ``quality``; the others are read."""
    node = Node(tmp_path)
    node.write("sys/devices/system/edac/mc/mc0/ce_count", "0")
    services = node.collector(Told(KeyError("x"), None, KeyError("x")), Edac(node.machine))
    rows, _ = node.minute(services)
    assert [row["name"] for row in rows] == ["mc0"]
    node.minute(services)
    assert [(q["field"], q["state"], q["reason"]) for q in node.quality] == [("told", "error", "KeyError: 'x'")]


def test_machine_with_nothing_to_watch_is_no_source(tmp_path: Path) -> None:
    """All five say why, in one line."""
    part = Told()
    part.absent = "not here"
    with pytest.raises(NoSource, match="not here"):
        Node(tmp_path).collector(part).collect(node_files.round_at(0))


def test_memory_is_of_one_boot(tmp_path: Path) -> None:
    """After a boot nothing is known and what is bad is told anew; within one it is not."""
    node = Node(tmp_path)
    bad = Look("unit", "a.service", "failed", bad=True, key="1")
    services = node.collector(Told(Seen([bad])))
    (first,) = node.minute(services)[1]
    services.close()
    part = Told(Seen([bad]))
    assert node.minute(node.collector(part))[1] == []
    assert part.kept == {"kept": 1}
    node.machine = node_files.node(tmp_path, boot_id="another")
    (again,) = node.minute(node.collector(Told(Seen([bad]))))[1]
    assert again["event_id"] != first["event_id"]


def test_one_fault_turning_into_another_is_told(tmp_path: Path) -> None:
    """A mount that hung and comes back read-only is another fault, told at once."""
    hung, lost = Look("mount", "/d", "hung", bad=True), Look("mount", "/d", "read_only", bad=True)
    services = (node := Node(tmp_path)).collector(Told(Seen([hung]), None, Seen([lost]), None))
    assert [e["kind"] for _ in range(2) for e in node.minute(services)[1]] == ["mount_hung", "mount_read_only"]


def test_long_texts_are_cut(tmp_path: Path) -> None:
    """What a program says may be long; a row stays small."""
    long = "x" * 10_000
    seen = Seen(
        [Look("unit", "a", "failed", bad=True, reason=long)], [Happening("ipmi_sel", "s", long, long, raw=long)]
    )
    node = Node(tmp_path)
    rows, events = node.minute(node.collector(Told(seen)))
    assert len(rows[0]["reason"]) <= 400
    assert all(len(event["message"]) <= 400 and len(event["raw"] or "") <= 800 for event in events)


def test_host_rows_have_its_counts_once_a_minute(tmp_path: Path) -> None:
    """The collector ``host`` writes them: two rows of one node and time would be dropped as a repeat."""
    node = Node(tmp_path)
    node.write("sys/devices/system/edac/mc/mc0/ce_count", "7")
    services = node.collector(Edac(node.machine))
    health = Health(node.hands.monotonic, node.machine.proc)
    health.probes += probes([services])
    host = Host(node.machine, health)
    node.minute(services)
    rows = []
    for second in (59, 60, 61):
        round_ = node_files.round_at(second)
        health.due = round_.due
        rows += host.collect(round_)["host"]
    assert [row.get("edac_corrected_errors") for row in rows] == [None, 7, None]
    host.close()


def test_configuration_adds_units_and_takes_some_away(tmp_path: Path) -> None:
    """The shipped list is for a GPU node; a site adds its own and leaves out what it does not run."""
    settings = {"services": {"units": ["lustre.service"], "ignore": ["munge.service"], "full_ratio": 0.9}}
    wanted = Given(parse(settings, "test"), node_files.node(tmp_path), Health(lambda: 0.0), None)  # type: ignore[arg-type]
    made = make_one("services", wanted)
    assert isinstance(made, Services)
    units = made._parts[0]
    assert set(units._units) == {*UNITS, "lustre.service"} - {"munge.service"}  # type: ignore[attr-defined]
    made.close()


def test_the_table_names_every_state_that_is_written() -> None:
    """The contract's help lists the words; a new one belongs there."""
    text = TABLES["service"].field("state").help
    for word in ("not_needed", "restarting", "hung", "read_only", "full", "warning", "dead", "uncorrected", "gone"):
        assert word in text


def test_rows_land_in_the_lake(tmp_path: Path) -> None:
    """Changes arrive in table ``service`` and events in ``event``, as they were sent."""
    node = Node(tmp_path)
    bad = Look(
        "mount", "/home", "hung", bad=True, reason="nfs4 filer:/home has not answered", attributes={"type": "nfs4"}
    )
    services = node.collector(Told(Seen([bad, Look("disk", "/", "ok", value=0.5, unit="ratio")])))
    rows, events = node.minute(services)
    for table, some in (("service", rows), ("event", events)):
        log = Log(TABLES[table].topic)
        who = {"ts": at(0), "cluster": CLUSTER, "node_id": "n1", "node": "h", "boot_id": "b"}
        log.add(message([{**row, **who} for row in some], table=table), 0)
        lake = landing_kit.land(tmp_path / "lake", log)
    stored = landing_kit.rows(lake, "service")
    assert stored.select("kind", "name", "state", "bad", "value").rows() == [
        ("disk", "/", "ok", False, 0.5), ("mount", "/home", "hung", True, None),
    ]  # fmt: skip
    assert lake.read("event")["kind"].to_list() == ["mount_hung"]


def test_real_systemctl_without_systemd(tmp_path: Path) -> None:
    """The real program where systemd is not the first process (a container with the host's folders): its refusal is
    the reason that is told."""
    if shutil.which("systemctl", path=PATH) is None or Path("/run/systemd/system").is_dir():
        pytest.skip("no systemctl, or a real systemd here")
    node = Node(tmp_path)
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    node.runner = Runner(PATH)
    services = node.collector(Units(node.machine, node.runner, run=tmp_path / "run"))
    assert node.minute(services) == ([], [])
    assert [q["state"] for q in node.quality] == ["error"]
    assert "systemd" in node.quality[0]["reason"]
    services.close()


@given(st.text(max_size=300))
def test_no_text_breaks_a_parser(text: str) -> None:
    """Whatever a program prints: something, nothing, or the one error that is expected."""
    parse_show(text)
    parse_info(text)
    parse_smart(text)
    list(records(text))
    watched(parse_mountinfo(text))
    with contextlib.suppress(ValueError):
        parse_statfs(text)
