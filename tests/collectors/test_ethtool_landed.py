"""What ``ethtool`` reads on its way: through ``infiniband``'s rows into the lake's tables, and from the real kernel."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import landing_kit
import node_files
import pytest
from agent_fakes import Source
from ethtool_standin import Fake, Standin, qsfp28
from landing_kit import CLUSTER, Log, at, message

from graynode.collectors.base import Round, Row
from graynode.collectors.ethtool.collector import Ethtool
from graynode.collectors.ethtool.wire import Sockets
from graynode.collectors.infiniband import Infiniband
from graynode.pipeline.schema import TABLES
from graynode.service.agent_parts import connect


def test_a_minute_of_pauses_lands_in_one_row_a_second(tmp_path: Path) -> None:
    """No row is dropped as a repeat, no value as implausible, and windows have the growth of the pause counters."""
    node_files.Ports(tmp_path / "sys").net("eth0")
    port = Fake(counters={"rx_prio3_pause": 0, "rx_prio3_pause_duration": 0}, memory=qsfp28())
    machine = node_files.node(tmp_path, cluster=CLUSTER, node_id="n1")
    state, counters = Infiniband(machine), Ethtool(machine, kernel=Standin(eth0=port).kernel())
    connect([state, Source(), counters])
    log = Log()
    for second in range(120):
        port.counters = {"rx_prio3_pause": 5 * second, "rx_prio3_pause_duration": 100 * second}
        due = frozenset(every for every in (1, 10, 60) if second % every == 0)
        round_ = Round(at(second), due, 1.0 if second else None)
        rows: list[Row] = []
        for collector in (state, counters):  # the quick one first, as the crew has it
            rows += collector.collect(round_).get("link", [])
        who = {"ts": at(second), "cluster": CLUSTER, "node_id": "n1", "boot_id": "b", "driver_load": 1}
        log.add(message([{**row, **who} for row in rows], table="link", sequence=second), second)
    lake = landing_kit.land(tmp_path / "lake", log)
    raw = landing_kit.rows(lake, "link")
    assert raw.height == 120
    assert raw["module_temp_c"].drop_nulls().to_list() == [31.0, 31.0]
    assert raw["rx_pause_frames_prio3"].drop_nulls().len() == 12
    assert lake.read("quality").filter(table_name="link").height == 0
    windows = landing_kit.rows(lake, "link_30s")
    assert windows["samples"].to_list() == [30] * 4
    assert sum(windows["rx_pause_frames_delta"]) == 5 * 110  # from the first reading to the last
    assert windows["rx_pause_us_last"].to_list()[-1] == 100 * 110
    state.close()
    counters.close()


def test_every_column_it_gives_has_a_class_of_its_own_pace() -> None:
    """What is read every 10 or 60 s is declared so; nothing of it is of the 1 s class."""
    fields = {f.name: f for f in TABLES["link"].fields}
    assert {fields[name].every_s for name in ("rx_pause_frames", "rx_pause_frames_prio7", "down_reason")} == {10}
    assert {fields[name].every_s for name in ("module_temp_c", "module_rx_power_min_mw", "fec_mode")} == {60}


def test_the_kernel_of_this_machine() -> None:
    """The loopback interface has a link state and nothing else, and the kernel says so in our words."""
    kernel = Sockets()
    try:
        assert kernel.link_state("lo") == {"down_reason": None, "phy_downs": None}
    except OSError as none:
        pytest.skip(f"no ethtool netlink here: {none}")
    assert _refusal(lambda: kernel.counter_names("lo")) == errno.EOPNOTSUPP
    assert _refusal(lambda: kernel.fec("lo")) == errno.EOPNOTSUPP
    assert _refusal(lambda: kernel.link_state("no-such-port")) == errno.ENODEV
    for port in (p.name for p in Path("/sys/class/net").iterdir() if (p / "device").exists()):
        try:
            names = kernel.counter_names(port)
        except OSError:
            continue
        assert len(kernel.counters(port, len(names))) == len(names)
    kernel.close()
    kernel.close()


def _refusal(ask: Callable[[], object]) -> int | None:
    try:
        ask()
    except OSError as error:
        return error.errno
    return None
