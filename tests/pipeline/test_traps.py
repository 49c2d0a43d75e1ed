"""One fleet in which telemetry lies in every way at once, from the source's own words to the answer in SQL.

Numbers are those of ``docs/telemetry-traps.md``, which names for each trap where it is handled and which test shows it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import landing_kit
import polars as pl
import pytest
from exporter_standin import uuid_of
from landing_kit import Log, at, gpu_row, message
from lying_fleet import DEV, STEP_S, STEPS, World, build

from graynode.collectors.kernel_log.patterns import understand
from graynode.detectors.base import TOLD, Round
from graynode.detectors.blind import Blind
from graynode.detectors.event_rules import from_events
from graynode.detectors.pcie import Pcie
from graynode.detectors.policy import shipped
from graynode.detectors.rules import Rules
from graynode.pipeline.queries import Queries
from graynode.pipeline.schema import EVENTS, INT64_BLANK, TABLES

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """All of it at once."""
    made = build(tmp_path_factory.mktemp("traps"))
    yield made
    made.queries.close()


def test_a_bad_field_costs_neither_its_batch_nor_its_neighbours(world: World) -> None:
    """Nothing is a misfit, nothing is rejected, and the healthy node's values are all there."""
    assert world.misfits.counts == {}
    assert world.rejected == []
    healthy = world.raw("healthy")
    assert healthy.height == 8 * STEPS
    for name in ("gpu_util_percent", "power_w", "sm_active_ratio", "dram_active_ratio", "energy_mj", "temp_c"):
        assert healthy[name].null_count() == 0, name
    assert world.queries.rows(
        "SELECT field FROM quality_now WHERE node = 'healthy' AND state NOT IN ('measured', 'unsupported')"
    ) == []  # fmt: skip


# --- what values are -----------------------------------------------------------------------------------------


def test_row_1_a_sentinel_is_a_state_and_no_metric(world: World) -> None:
    """9223372036854775794, GPU_UTIL of 9223372036854776000 % and <<<NULL>>>: null, with a reason."""
    for name in ("gpu_util_percent", "mem_temp_c", "temp_c"):
        assert world.raw("sentinels")[name].null_count() == 8 * STEPS
        assert world.states("sentinels", name) <= {"unsupported", "stale"}
        assert len(world.told("sentinels", name)) == 8
    [why, *_] = world.queries.rows(f"FROM why_null('{uuid_of(3, 1)}', 'mem_temp_c')")
    assert (why["scope"], why["state"], why["since"]) == ("field", "unsupported", at(0))


def test_row_1_an_int32_sentinel_is_a_legal_value_of_a_64_bit_counter(world: World) -> None:
    """2147483634 bytes and mJ stay, and 2^47 bytes of NVLink; 2147483634 °C goes."""
    rows = landing_kit.rows(world.lake, "gpu").filter(node_id="legal")
    assert rows["mem_used_bytes"].unique().to_list() == [2147483634]
    assert rows["energy_mj"].min() == 2147483632
    assert rows["nvlink_tx_bytes"].unique().to_list() == [140737488355328]
    assert rows["temp_c"].null_count() == rows.height


def test_row_2_one_bad_field_does_not_lose_the_page(world: World) -> None:
    """140737488355328.0 and 1.4e16 % beside values that are right."""
    rows = world.raw("sentinels")
    assert rows.height == 8 * STEPS
    assert rows["sm_active_ratio"].null_count() == rows["dram_active_ratio"].null_count() == rows.height
    assert rows["power_w"].null_count() == rows["sm_clock_mhz"].null_count() == 0
    assert world.states("sentinels", "dram_active_ratio") == {"implausible"}


def test_row_3_vanished_is_not_zero(world: World) -> None:
    """0 until it vanishes, null afterwards, and since when."""
    values = world.raw("vanishing", 0)["row_remaps_correctable"].to_list()
    assert values == [0] * (STEPS // 2) + [None] * (STEPS // 2)
    [why, *_] = world.queries.rows(f"FROM why_null('{uuid_of(0, 2)}', 'row_remaps_correctable')")
    assert (why["state"], why["since"]) == ("stale", at(STEPS // 2 * STEP_S))


def test_row_4_what_a_model_gives_depends_on_the_model(tmp_path: Path) -> None:
    """GB200 refuses ECC beside NVLink counters: a state of that field on those GPUs, and of no other."""
    log = Log()
    for node, model in (("gb", "NVIDIA GB200"), ("h", "NVIDIA H100 80GB HBM3")):
        gpu = {"kind": "gpu", "entity": f"GPU-{node}", "model": model, "slot": "0000:1b:00.0"}
        who = {k: v for k, v in gpu_row(0, node).items() if k in TABLES["inventory"].names}
        log.add(message([{**who, **gpu}], table="inventory", sequence=0), 1)
        ecc = {} if node == "gb" else {"ecc_sbe_volatile": 0}
        log.add(message([gpu_row(s, node, f"GPU-{node}", nvlink_rx_bytes=s, **ecc) for s in range(5)], sequence=1), 6)
    said = {"table_name": "gpu", "entity": "GPU-gb", "field": "ecc_sbe_volatile", "state": "unsupported"}
    who = {k: v for k, v in gpu_row(0, "gb").items() if k in TABLES["quality"].names}
    log.add(message([{**who, **said, "reason": "not with NVLINK_COUNT_*"}], table="quality", sequence=2), 6)
    queries = Queries(landing_kit.land(tmp_path, log))
    try:
        [row] = queries.rows("FROM fields_missing('GB200')")
        assert (row["field"], row["gpus"], row["of_gpus"]) == ("ecc_sbe_volatile", 1, 1)
        assert queries.rows("FROM fields_missing('H100')") == []
    finally:
        queries.close()


def test_row_5_an_xid_gauge_is_a_level_and_makes_no_event(world: World) -> None:
    """230 never returns to 0: the page's 62 is stored nowhere, and SQL says where Xids come from."""
    assert world.lake.read("event").filter(kind="xid").height == 0
    [row] = world.queries.rows(
        f"SELECT DISTINCT reason FROM quality_now WHERE node = 'xid_level' AND field = '{DEV}XID_ERRORS'"
    )
    assert "events come from the kernel log" in row["reason"]


def test_row_6_every_xid_of_the_catalogue_comes_through_the_kernel_log(tmp_path: Path) -> None:
    """62 too, which an exporter has been seen to leave out: line, event, lake, finding."""
    codes, log = sorted(shipped().xids), Log(EVENTS)
    rows = []
    for code in codes:
        found = understand(f"NVRM: Xid (PCI:0000:1b:00): {code}, pid=1, name=x, words")
        assert found is not None
        assert (found.kind, found.code) == ("xid", code)
        keys = {k: v for k, v in gpu_row(code).items() if k in TABLES["event"].names}
        rows.append({**keys, "gpu_uuid": None, "event_id": f"e{code}", "kind": "xid", "code": found.code,
                     "pci_bus_id": found.pci_bus_id, "attributes": json.dumps(found.attributes)})  # fmt: skip
    log.add(message(rows, table="event"), 1)
    stored = landing_kit.land(tmp_path, log).read("event")
    assert sorted(stored["code"]) == codes
    assert 62 in codes
    assert len(from_events(stored)) == len(codes)


def test_row_7_a_profiler_that_is_dead_gives_zeros_that_are_none(world: World) -> None:
    """PROF_* of 0 while GPU_UTIL is 100 and power is drawn: null and paused, since it began."""
    rows = world.raw("profiler_dead", 2)
    half = STEPS // 2
    for name in ("gr_engine_active_ratio", "sm_active_ratio", "dram_active_ratio", "pcie_tx_bytes_per_s"):
        assert rows[name].is_null().to_list() == [False] * half + [True] * half, name
        assert world.states("profiler_dead", name) == {"paused"}
    assert rows["gpu_util_percent"].to_list() == [100] * STEPS
    [why, *_] = world.queries.rows(f"FROM why_null('{uuid_of(2, 4)}', 'sm_active_ratio')")
    assert (why["state"], why["since"]) == ("paused", at(half * STEP_S))


def test_row_8_more_than_all_of_an_instance_is_no_measurement(world: World) -> None:
    """SM activity of 137 % on MIG goes; the other instance's 51 % stays."""
    rows = world.raw("mig")
    assert rows.filter(mig_instance="7")["sm_active_ratio"].null_count() == STEPS
    assert rows.filter(mig_instance="8")["sm_active_ratio"].unique().to_list() == [pytest.approx(0.51)]


def test_row_9_energy_of_0_and_energy_that_falls_make_no_terawatts(world: World) -> None:
    """0 J is no measurement; a fall is a reset with an unknown difference, never a negative or a wrapped one."""
    raw = world.raw("energy", 0)["energy_mj"].to_list()
    assert raw[:6] == [None] * 6
    windows = landing_kit.rows(world.lake, "gpu_30s").filter(pl.col("node") == "energy", gpu_uuid=uuid_of(0, 6))
    deltas = windows["energy_mj_delta"].drop_nulls()
    assert windows["resets"].sum() == 1
    assert 0 <= deltas.min() <= deltas.max() <= 3  # type: ignore[operator]  # the page grows by 1 mJ a step


def test_row_10_lost_samples_and_slow_calls_are_the_signal(world: World) -> None:
    """A node that gives 60 % of its samples and whose calls take 46 s is told for just that."""
    hosts = landing_kit.rows(world.lake, "host_30s").filter(node_id="deaf")
    assert hosts["nvml_call_max_ms_max"].max() == 46_000
    found = _played(Blind(), hosts, "host", 10)
    assert found["signal"].unique().to_list() == ["samples"]
    assert "60%" in found["message"][0]


def test_row_11_a_source_that_falls_silent_is_blindness_by_the_second(world: World) -> None:
    """The exporter hangs for three minutes: its GPUs are unread, nobody calls them sick."""
    rows = world.queries.rows(f"FROM blind('{at(0)}', '{at(STEPS * STEP_S)}')")
    silent = next(row for row in rows if row["node"] == "silent")
    half = STEPS // 2 * STEP_S
    assert half - 30 <= silent["blind_s"] <= half
    assert silent["planned_s"] == 0
    assert silent["gpu_blind_s"] == 8 * silent["blind_s"]
    assert "healthy" not in {row["node"] for row in rows}


def test_row_14_a_rate_called_bytes_is_a_gauge(world: World) -> None:
    """PROF_PCIE_TX_BYTES says TYPE counter on some pages: it is averaged, never differenced."""
    names = TABLES["gpu_30s"].names
    assert "pcie_tx_bytes_per_s_mean" in names
    assert "pcie_tx_bytes_per_s_delta" not in names
    windows = landing_kit.rows(world.lake, "gpu_30s").filter(pl.col("node") == "healthy")
    assert windows["pcie_tx_bytes_per_s_mean"].unique().to_list() == [112603.0]


def test_row_15_instances_are_keyed_and_an_id_that_is_none_belongs_to_nobody(world: World) -> None:
    """(uuid, instance) is the key: nothing merges; "FAILED TO CONVERT" is named in ``quality``."""
    rows = world.raw("mig")
    assert rows.filter(gpu_uuid=uuid_of(0, 5)).group_by("mig_instance").len().sort("mig_instance").rows() == [
        (None, STEPS), ("7", STEPS), ("8", STEPS),
    ]  # fmt: skip
    assert world.queries.rows("FROM quality_now WHERE node = 'mig' AND contains(field || reason, 'FAILED TO CONVERT')")


def test_row_16_a_lost_gpu_costs_no_other_a_sample(world: World) -> None:
    """Seven go on; the eighth is said to be gone, since when."""
    half = STEPS // 2
    counts = world.raw("lost_gpu").group_by("gpu_uuid").len().sort("len")["len"].to_list()
    assert counts == [half] + [STEPS] * 7
    [why, *_] = world.queries.rows(f"FROM why_null('{uuid_of(7, 7)}', 'power_w')")
    assert (why["scope"], why["since"]) == ("gpu", at(half * STEP_S))


def test_row_17_text_that_stands_for_nothing_is_no_text(world: World) -> None:
    """[N/A] is no model and ERR! no address."""
    rows = landing_kit.rows(world.lake, "gpu").filter(node_id="text")
    assert set(rows["gpu_model"].drop_nulls()) == {"NVIDIA T4"}
    assert rows["pci_bus_id"].null_count() == rows.height
    states = world.queries.rows("SELECT DISTINCT field, state FROM quality WHERE node_id = 'text' ORDER BY field")
    assert [tuple(row.values()) for row in states] == [("gpu_model", "unsupported"), ("pci_bus_id", "error")]


def test_row_19_pcie_generation_is_judged_under_load_only(world: World) -> None:
    """Gen1 and back every second while idle says nothing; Gen2 at 100 % does, after three minutes."""
    windows = landing_kit.rows(world.lake, "gpu_30s").filter(node_id="pcie")
    found = _played(Pcie(), windows, "gpu", 10)
    assert set(found["gpu_uuid"]) == {"GPU-slow"}
    assert set(found["signal"]) == {"generation"}


def test_row_21_the_same_messages_again_change_nothing(tmp_path: Path) -> None:
    """Sent twice, landed twice, scored twice: the same rows, and the same findings under the same ids."""
    log = Log()
    for _ in range(2):
        for step in range(20):
            rows = [gpu_row(10 * step + s, recovery_action=2, temp_c=999) for s in range(10)]
            log.add(message(rows, sequence=step), 10 * step + 11)
    lake = landing_kit.land(tmp_path, log, chunks=[7, 13, 5])
    assert landing_kit.rows(lake, "gpu").height == 200
    assert lake.read("quality").height == 1
    windows = landing_kit.rows(lake, "gpu_30s")
    ids = [_played(Rules(), windows, "gpu", 6, told=False)["finding_id"].to_list() for _ in range(2)]
    assert ids[0] == ids[1]
    assert len(ids[0]) == len(set(ids[0])) > 0


def test_a_batch_of_long_ago_under_a_new_number_counts_nothing_twice(tmp_path: Path) -> None:
    """A spool restored from a backup: its windows are closed and stay as they are."""
    log = Log()
    old = [[gpu_row(10 * step + s, energy_mj=1000 * (10 * step + s)) for s in range(10)] for step in range(12)]
    for step, rows in enumerate(old):
        log.add(message(rows, sequence=step), 10 * step + 11)
    before = landing_kit.rows(landing_kit.land(tmp_path, log), "gpu_30s")
    for step, rows in enumerate(old):
        log.add(message(rows, sequence=step, epoch=2), 3600 + step)
    after = landing_kit.rows(landing_kit.land(tmp_path, log), "gpu_30s")
    assert after.equals(before)
    assert after["samples"].sum() == 120
    assert after["energy_mj_delta"].sum() == 119_000


# --- newer facts ---------------------------------------------------------------------------------------------


def test_new_1_an_unknown_recovery_action_is_kept_and_asked_about(world: World) -> None:
    """7 means one thing in one driver branch and nothing in another: stored as it is, and a person is asked."""
    windows = landing_kit.rows(world.lake, "gpu_30s").filter(node_id="text")
    assert set(windows["recovery_action_last"]) == {7}
    found = _played(Rules(), windows, "gpu", 4, told=False)
    assert "ask a person" in found["action"][0].lower()


def test_new_5_reason_bits_that_nobody_knows_are_kept(world: World) -> None:
    """Drivers add bits: raw as they came, and their seconds are counted as other."""
    windows = landing_kit.rows(world.lake, "gpu_30s").filter(node_id="text")
    assert set(landing_kit.rows(world.lake, "gpu").filter(node_id="text")["clock_event_reasons"]) == {0x200}
    assert windows["other_clock_event_s"].max() == 30
    assert windows["hw_power_brake_s"].max() == 0


def test_new_9_energy_is_the_counters_difference_not_power_by_time(world: World) -> None:
    """The power sensor sees a quarter of the time on A100 and H100; energy has a counter of its own."""
    windows = landing_kit.rows(world.lake, "gpu_30s").filter(pl.col("node") == "healthy")
    assert set(windows["energy_mj_delta"][1:-1]) <= {6_000_000, 9_000_000}


def test_wraps_saturation_and_negative_margins(world: World) -> None:
    """A 32-bit wrap is a difference; a port counter at its end says nothing and says so; −3 °C of margin is legal."""
    legal = landing_kit.rows(world.lake, "gpu_30s").filter(node_id="legal")
    assert legal["pcie_replays_delta"].sum() == 299
    assert legal["resets"].sum() == 0
    port = landing_kit.rows(world.lake, "link_30s").filter(node_id="port")
    assert port["link_downed_delta"].null_count() == port.height
    assert set(port["link_downed_last"]) == {255}
    assert port["symbol_errors_delta"].sum() == 35
    said = world.queries.rows("SELECT field, state FROM quality_now WHERE node_id = 'port' ORDER BY field")
    assert [tuple(row.values()) for row in said] == [("link_downed", "stale"), ("symbol_errors", "stale")]
    assert set(landing_kit.rows(world.lake, "gpu").filter(node_id="text")["temp_margin_c"]) == {-3}


@pytest.mark.parametrize("value", [*INT64_BLANK, 2**63 - 1, -(2**63)])
def test_an_int64_sentinel_is_none_even_after_a_float_and_back(tmp_path: Path, value: int) -> None:
    """9.223372036854776e18 made an integer again comes out at one end of 64 bits."""
    log = Log()
    log.add(message([gpu_row(0, energy_mj=value, mem_used_bytes=1)]), 1)
    lake = landing_kit.land(tmp_path, log)
    assert lake.read("gpu")["energy_mj"].to_list() == [None]
    assert lake.read("gpu")["mem_used_bytes"].to_list() == [1]
    [why] = lake.read("quality").to_dicts()
    assert why["state"] in ("stale", "error", "unsupported", "not_permitted")
    assert "DCGM" in why["reason"]


# --- the page ------------------------------------------------------------------------------------------------


def test_every_trap_has_a_row_and_every_row_a_test_that_is_there() -> None:
    """``docs/telemetry-traps.md`` names tests that exist, for all of what the field has reported."""
    text = (ROOT / "docs/telemetry-traps.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([A-Z]?\d+) \|(.+)\|$", text, re.MULTILINE)
    numbers = {number for number, _ in rows}
    assert {str(n) for n in range(1, 22)} | {f"N{n}" for n in range(1, 10)} <= numbers
    for number, row in rows:
        named = re.findall(r"(tests/\S+\.py)::(\w+)", row)
        assert named, f"row {number} names no test"
        for file, test in named:
            source = ROOT / file
            assert source.is_file(), f"row {number}: {file} is not there"
            assert f"def {test}(" in source.read_text(encoding="utf-8"), f"row {number}: {file} has no {test}"


def _played(detector: Any, windows: pl.DataFrame, table: str, count: int, *, told: bool = True) -> pl.DataFrame:
    """Findings over the first windows of one table."""
    empty, state, found = pl.DataFrame(), {}, []
    start = windows["ts"].min()
    assert start is not None
    for n in range(count):
        ts = start + timedelta(seconds=30 * n)  # type: ignore[operator]  # a time, by the column's type
        frames = dict.fromkeys(("gpu", "link", "host"), empty) | {table: windows.filter(pl.col("ts") == ts)}
        scored = detector.score(
            Round(start=ts, window_s=30, **frames, events=empty, probes=empty, inventory=empty, quality=empty), state
        )
        state = scored.state
        found.append(scored.findings)
    rows = pl.concat(found)
    return rows.filter(TOLD) if told else rows
