"""The ``rules`` detector on window rows: flags, throttle bits, counts of GPUs."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

import numpy as np
import polars as pl
import pytest
from window_rounds import START, Cluster, Columns

from graynode.detectors.base import FINDING_COLUMNS, Round
from graynode.detectors.incidents import Incidents
from graynode.detectors.rules import Rules

Fault = Callable[[int, Columns], None]


def played(
    rounds: Iterable[Round], after: Callable[[int, dict[str, pl.DataFrame]], None] = lambda *_: None
) -> list[Any]:
    """(window's number, finding) of every finding over the rounds."""
    state: dict[str, pl.DataFrame] = {}
    told = []
    for w, round_ in enumerate(rounds):
        scored = Rules().score(round_, state)
        assert tuple(scored.findings.columns) == FINDING_COLUMNS
        told += [(w, row) for row in scored.findings.iter_rows(named=True)]
        state = dict(scored.state)
        after(w, state)
    return told


def signals(told: list[Any]) -> list[tuple[int, str]]:
    return [(w, f["signal"]) for w, f in told if f["severity"] != "digest"]


def only(column: str, values: Callable[[int], float], gpu: int = 3) -> Fault:
    """One GPU's column by window; the others hold 0."""

    def change(w: int, c: Columns) -> None:
        c[column] = np.zeros(len(next(iter(c.values()))))
        c[column][gpu] = values(w)

    return change


def test_a_healthy_cluster_says_nothing() -> None:
    """No finding in two hours of 64 GPUs."""
    assert played(Cluster(seed=3).rounds(240)) == []


@pytest.mark.parametrize(
    ("column", "signal", "cause", "severity"),
    [
        ("row_remap_failed_last", "row_remap_failed", "memory_degraded", "page"),
        ("row_remap_pending_last", "row_remap_pending", "memory_degraded", "ticket"),
        ("sram_threshold_exceeded_last", "sram_threshold", "memory_degraded", "ticket"),
        ("retired_pages_pending_last", "retired_pages_pending", "memory_degraded", "ticket"),
    ],
)
def test_a_flag_counts_at_once(column: str, signal: str, cause: str, severity: str) -> None:
    """It is told in its first window, stated again every half hour, and told to be over when it is."""
    flag = only(column, lambda w: 1.0 if 2 <= w < 70 else 0.0)
    told = played(Cluster(nodes=2, gpu_fault=flag).rounds(80))
    assert signals(told) == [(2, signal), (62, signal)]
    assert {(f["cause"], f["severity"]) for w, f in told if w < 70} == {(cause, severity)}
    w, over = told[-1]
    assert (w, over["severity"]) == (70, "digest")
    assert json.loads(over["evidence"])["clears"] == [signal]


@pytest.mark.parametrize(
    ("column", "below", "from_", "signal", "owner"),
    [
        ("row_remaps_uncorrectable_last", 511.0, 512.0, "rows_remapped_512", "vendor"),
        ("row_remaps_correctable_last", 10.0, 11.0, "rows_remapped_10", "platform"),
        ("bank_remap_none_last", 0.0, 1.0, "bank_exhausted", "vendor"),
        ("ecc_dbe_aggregate_sram_last", 4.0, 5.0, "sram_uncorrectable", "vendor"),
        ("retired_pages_sbe_last", 59.0, 60.0, "retired_pages_60", "vendor"),
    ],
)
def test_return_limits_count_from_their_value_with_their_source(
    column: str, below: float, from_: float, signal: str, owner: str
) -> None:
    """One less says nothing (of that limit); the limit itself is a ticket that names who set it."""
    level = only(column, lambda w: below if w < 3 else from_)
    told = [(w, f) for w, f in played(Cluster(nodes=2, gpu_fault=level).rounds(5)) if f["signal"] == signal]
    assert [(w, f["severity"], f["cause"]) for w, f in told] == [(3, "ticket", "memory_degraded")]
    evidence = json.loads(told[0][1]["evidence"])
    assert evidence["owner"] == owner
    assert evidence["action_source"]


def test_remapped_rows_of_both_kinds_add_up_and_unknown_ones_are_not_zero() -> None:
    """Six and five make eleven; where neither is read there is no answer."""

    def both(_: int, c: Columns) -> None:
        c["row_remaps_uncorrectable_last"] = np.zeros(len(c["samples"]))
        c["row_remaps_correctable_last"] = np.full(len(c["samples"]), np.nan)
        c["row_remaps_uncorrectable_last"][3], c["row_remaps_correctable_last"][3] = 6.0, 5.0

    told = played(Cluster(nodes=2, gpu_fault=both).rounds(2))
    assert [(f["signal"], f["value"]) for _, f in told] == [("rows_remapped_10", 11.0)]


def test_a_flag_becomes_an_incident_that_ends_with_the_flag() -> None:
    """While the flag stands the incident stands, however long; it resolves after the flag has gone."""
    flag = only("row_remap_pending_last", lambda w: 1.0 if w < 4 else 0.0)
    incidents, told = Incidents("test", resolve_after_s=60), []
    state: dict[str, pl.DataFrame] = {}
    for round_ in Cluster(nodes=2, gpu_fault=flag).rounds(10):
        scored = Rules().score(round_, state)
        state = dict(scored.state)
        told += incidents.add(scored.findings.iter_rows(named=True), round_.start) + incidents.tick(round_.start)
    assert [r["state"] for r in told] == ["open", "resolved"]
    assert told[0]["pci_bus_id"] == "0000:14:00.0"
    assert told[0]["gpu_uuid"] == "GPU-000-3"


def test_null_is_no_answer() -> None:
    """A flag that cannot be read for a while neither ends nor begins anything."""
    flag = only("row_remap_failed_last", lambda w: float("nan") if w >= 2 else 1.0)
    assert [s for _, s in signals(played(Cluster(nodes=2, gpu_fault=flag).rounds(20)))] == ["row_remap_failed"]


@pytest.mark.parametrize(
    ("column", "need", "signal", "cause"),
    [
        ("hw_power_brake_s", 3, "power_brake", "power_brake"),
        ("hw_thermal_s", 12, "hw_thermal", "thermal"),
        ("hw_slowdown_s", 12, "hw_slowdown", "unusual"),
    ],
)
def test_throttling_counts_by_persistence(column: str, need: int, signal: str, cause: str) -> None:
    """One window less than the rule wants says nothing; the last one needed tells."""
    short = only(column, lambda w: 30.0 if w < need - 1 else 0.0)
    assert played(Cluster(nodes=2, gpu_fault=short).rounds(40)) == []
    told = played(Cluster(nodes=2, gpu_fault=only(column, lambda w: 30.0)).rounds(need))
    assert signals(told) == [(need - 1, signal)]
    assert told[0][1]["cause"] == cause


def test_a_window_without_an_answer_does_not_break_the_row() -> None:
    """Two windows of power brake, one that could not be read, one more: three in a row of those that speak."""
    gap = only("hw_power_brake_s", lambda w: float("nan") if w == 2 else 30.0)
    assert signals(played(Cluster(nodes=2, gpu_fault=gap).rounds(5))) == [(3, "power_brake")]


def test_thermal_six_of_ten_minutes() -> None:
    """Slowdown in three windows of five, for ten minutes, is told; in one of two with pauses it is not."""
    often = only("hw_thermal_s", lambda w: 30.0 if w % 5 < 3 else 0.0)
    assert [s for _, s in signals(played(Cluster(nodes=2, gpu_fault=often).rounds(40)))] == ["hw_thermal"]
    seldom = only("hw_thermal_s", lambda w: 30.0 if w % 2 else 0.0)
    assert played(Cluster(nodes=2, gpu_fault=seldom).rounds(60)) == []


def test_moments_of_throttling_are_healthy() -> None:
    """A few seconds in every window, as any loaded GPU has them, are no fault."""
    some = only("hw_power_brake_s", lambda w: 9.0)
    assert played(Cluster(nodes=2, gpu_fault=some).rounds(60)) == []


def test_an_hours_window_counts_from_six_minutes() -> None:
    """Windows of an hour stand for themselves."""
    six = only("hw_thermal_s", lambda w: 361.0 if w == 1 else 300.0)
    assert signals(played(Cluster(nodes=2, gpu_fault=six).rounds(3, window_s=3600))) == [(1, "hw_thermal")]


def test_a_power_brake_on_a_fifth_of_the_cluster_is_one_event() -> None:
    """A rack's power event is named once, with its nodes, and no node is called sick for it."""

    def rack(_: int, c: Columns) -> None:
        c["hw_power_brake_s"][: 6 * 8] = 30.0

    told = played(Cluster(nodes=20, gpu_fault=rack).rounds(4))
    assert [(f["subject"], f["cause"]) for _, f in told] == [("cluster", "fleet_shift")]
    assert told[0][1]["value"] == 6.0
    assert len(json.loads(told[0][1]["evidence"])["nodes"]) == 6


def test_uncorrected_errors_are_told_as_they_grow() -> None:
    """Each window with growth is a finding; a null delta after a reset is none."""
    grows = only("ecc_dbe_volatile_delta", lambda w: {1: 2.0, 2: float("nan"), 5: 1.0}.get(w, 0.0))
    told = played(Cluster(nodes=2, gpu_fault=grows).rounds(8))
    assert [(w, f["value"], f["cause"]) for w, f in told] == [(1, 2.0, "memory_errors"), (5, 1.0, "memory_errors")]


@pytest.mark.parametrize(("value", "words"), [(1, "GPU reset"), (2, "node reboot"), (6, "ask a person")])
def test_recovery_action(value: int, words: str) -> None:
    """What the driver asks for is passed on; a value without an agreed meaning asks a person."""
    asks = only("recovery_action_last", lambda w: float(value) if 1 <= w < 4 else 0.0)
    told = played(Cluster(nodes=2, gpu_fault=asks).rounds(6))
    assert [(w, f["severity"] == "digest") for w, f in told] == [(1, False), (4, True)]
    assert words in told[0][1]["action"]


def test_another_recovery_action_is_news() -> None:
    """From reset to reboot is told at once, not half an hour later."""
    asks = only("recovery_action_last", lambda w: 1.0 if w < 3 else 2.0)
    told = played(Cluster(nodes=2, gpu_fault=asks).rounds(6))
    assert [(w, f["severity"]) for w, f in told] == [(0, "ticket"), (3, "page")]


def counts(
    node: int, at: Callable[[int], tuple[float, float]], uptime: Callable[[int], float] = lambda _: 1e6
) -> Fault:
    """NVML's and the PCI bus's count of one node by window."""

    def change(w: int, c: Columns) -> None:
        size = len(c["samples"])
        read, pci = np.full(size, 8.0), np.full(size, 8.0)
        read[node], pci[node] = at(w)
        c |= {"gpus_read_max": read, "gpus_expected_max": pci, "uptime_s_last": np.full(size, uptime(w))}

    return change


def test_a_gpu_is_lost_where_two_witnesses_agree() -> None:
    """NVML and the PCI bus both show 7 of 8: told in the second window, over when it is back."""
    fault = counts(1, lambda w: (7, 7) if 5 <= w < 20 else (8, 8))
    told = played(Cluster(nodes=4, host_fault=fault).rounds(30))
    assert [(w, f["cause"], f["severity"]) for w, f in told] == [(6, "gpu_lost", "page"), (20, "gpu_lost", "digest")]
    assert told[0][1]["node_id"] == "id-node001"
    assert "NVML reads 7, the PCI bus shows 7, the node has 8" in told[0][1]["message"]


@pytest.mark.parametrize(("kind", "code"), [("xid", 79), ("gpu_off_bus", None), ("gpu_lost", None)])
def test_the_kernel_log_is_a_witness(kind: str, code: int | None) -> None:
    """A GPU that fell off the bus may stay on the PCI list; the kernel said it, so it is lost and not unread."""
    fault = counts(1, lambda w: (7, 8) if 5 <= w < 20 else (8, 8))
    line = {"ts": [START.replace(minute=2, second=35)], "node_id": ["id-node001"], "kind": [kind], "code": [code]}
    events = pl.DataFrame(line, schema_overrides={"ts": pl.Datetime("us", "UTC"), "code": pl.Int64})
    rounds = [
        replace(r, events=events) if w == 5 else r for w, r in enumerate(Cluster(nodes=4, host_fault=fault).rounds(30))
    ]
    assert [(w, f["cause"], f["severity"]) for w, f in played(rounds)] == [
        (6, "gpu_lost", "page"), (20, "gpu_lost", "digest"),
    ]  # fmt: skip


def test_a_witness_of_long_ago_is_none() -> None:
    """After all GPUs were there again, NVML alone is one witness once more."""
    fault = counts(1, lambda w: (7, 8) if w == 5 or w >= 20 else (8, 8))
    line = {"ts": [START.replace(minute=2, second=35)], "node_id": ["id-node001"], "kind": ["xid"], "code": [79]}
    events = pl.DataFrame(line, schema_overrides={"ts": pl.Datetime("us", "UTC")})
    rounds = [
        replace(r, events=events) if w == 5 else r for w, r in enumerate(Cluster(nodes=4, host_fault=fault).rounds(30))
    ]
    assert [(w, f["cause"]) for w, f in played(rounds)] == [(23, "monitoring_blind")]


def test_nvml_alone_is_blindness() -> None:
    """The PCI bus still shows all: nobody says that a GPU is lost, and a moment of it is nothing."""
    fault = counts(1, lambda w: (5, 8) if w >= 5 else (8, 8))
    told = played(Cluster(nodes=4, host_fault=fault).rounds(20))
    assert [(w, f["cause"], f["severity"]) for w, f in told] == [(8, "monitoring_blind", "ticket")]
    moment = counts(1, lambda w: (5, 8) if w == 5 else (8, 8))
    assert played(Cluster(nodes=4, host_fault=moment).rounds(20)) == []


def test_grace_after_boot() -> None:
    """GPUs come up one after the other within minutes of boot; that is no loss."""
    young = counts(
        1, lambda w: (8, 8) if w < 5 or w > 15 else (6, 6), uptime=lambda w: 1e6 if w < 5 else (w - 5) * 30.0
    )
    assert played(Cluster(nodes=4, host_fault=young).rounds(30)) == []


def test_a_whole_cluster_that_nvml_does_not_show_is_one_event() -> None:
    """A driver or container roll-out: one finding about the cluster, no sick GPU."""

    def everywhere(w: int, c: Columns) -> None:
        size = len(c["samples"])
        c |= {"gpus_read_max": np.full(size, 8.0 if w < 5 else 0.0), "gpus_expected_max": np.full(size, 8.0)}

    told = played(Cluster(nodes=12, host_fault=everywhere).rounds(10))
    assert [(f["subject"], f["cause"], f["value"]) for _, f in told] == [("cluster", "monitoring_blind", 12.0)]


def test_inventory_says_what_a_node_should_have() -> None:
    """A node that never showed its eighth GPU is short of it all the same."""
    inventory = pl.DataFrame({"node_id": ["id-node001"], "kind": ["gpu"], "expected": [8]})
    fault = counts(1, lambda _: (7, 7))
    rounds = [replace(r, inventory=inventory) for r in Cluster(nodes=4, host_fault=fault).rounds(4)]
    assert [(w, f["node_id"]) for w, f in played(rounds)] == [(1, "id-node001")]


def test_a_node_that_never_had_as_many_as_its_kind_is_told() -> None:
    """Seven from the first boot on where its eleven sisters have eight: a ticket; of a mixed kind nothing is known."""

    def seven(_: int, c: Columns) -> None:
        counts(1, lambda _: (7, 7))(0, c)
        c["gpus_read_max"][[0, *range(2, 12)]] = c["gpus_expected_max"][[0, *range(2, 12)]] = 8.0

    def rounds(names: list[str]) -> Iterator[Round]:
        for r in Cluster(nodes=12, gpus=1, host_fault=seven).rounds(6):
            yield replace(r, host=r.host.with_columns(product_name_last=pl.Series(names)))

    told = played(rounds(["DGX H100"] * 12))
    assert [(f["node_id"], f["signal"], f["severity"]) for _, f in told] == [("id-node001", "gpus_short", "ticket")]
    assert "others of its kind have 8" in told[0][1]["message"]
    assert played(rounds(["DGX H100"] * 4 + ["VM"] * 8)) == []


def test_a_node_of_two_names_is_of_one_kind_whatever_the_order_of_its_rows() -> None:
    """Its product was renamed while windows were caught up with: the same findings for any order of rows."""

    def seven(_: int, c: Columns) -> None:
        counts(1, lambda _: (7, 7))(0, c)
        c["gpus_read_max"][[0, *range(2, 12)]] = c["gpus_expected_max"][[0, *range(2, 12)]] = 8.0

    def rounds(seed: int) -> Iterator[Round]:
        for r in Cluster(nodes=12, gpus=1, host_fault=seven).rounds(6):
            host = pl.concat([r.host.with_columns(product_name_last=pl.lit(name)) for name in ("DGX H100", "DGX")])
            yield replace(r, host=host.sample(fraction=1.0, shuffle=True, seed=seed))

    told = [[f["finding_id"] for _, f in played(rounds(seed))] for seed in range(4)]
    assert told[0]
    assert told == [told[0]] * 4


def test_a_smaller_count_for_a_week_is_the_nodes_new_size() -> None:
    """Somebody took a GPU out: after a week it is no longer missed, and another loss is told."""

    def fault(w: int, c: Columns) -> None:
        counts(1, lambda w: (8, 8) if w < 2 else (7, 7) if w < 200 else (6, 6))(w, c)

    told = played(Cluster(nodes=2, host_fault=fault).rounds(203, window_s=3600))
    pages = [w for w, f in told if f["severity"] == "page"]
    assert 2 in pages
    assert 180 not in pages
    assert 200 in pages


def test_rows_in_any_order_give_the_same() -> None:
    """The order of rows changes neither findings nor their ids."""

    def fault(w: int, c: Columns) -> None:
        only("row_remap_failed_last", lambda w: float(w > 2))(w, c)
        c["hw_power_brake_s"][5] = 30.0

    def shuffled(rounds: Iterator[Round]) -> Iterator[Round]:
        for i, r in enumerate(rounds):
            mixed = {t: getattr(r, t).sample(fraction=1.0, shuffle=True, seed=i) for t in ("gpu", "host")}
            yield replace(r, **mixed)

    plain = played(Cluster(seed=9, gpu_fault=fault).rounds(8))
    assert plain == played(shuffled(Cluster(seed=9, gpu_fault=fault).rounds(8)))
    assert len({f["finding_id"] for _, f in plain}) == len(plain) == 2


def test_memory_is_as_large_as_the_cluster() -> None:
    """State does not grow with time."""
    sizes: list[int] = []
    played(Cluster(nodes=3).rounds(30), lambda _, state: sizes.append(sum(f.height for f in state.values())))
    assert set(sizes) == {3 * 8 + 3}


def test_absent_columns_and_empty_tables() -> None:
    """A lake without these columns, or without any rows, gives no finding and no error."""
    empty = pl.DataFrame()
    bare = pl.DataFrame(
        {"ts": [START], "node_id": ["n"], "gpu_uuid": ["g"]}, schema_overrides={"ts": pl.Datetime("us", "UTC")}
    )
    for gpu in (empty, bare):
        round_ = Round(START, 30, gpu, empty, empty, empty, empty, empty, empty)
        assert Rules().score(round_, {}).findings.is_empty()


def test_ids_name_the_window() -> None:
    """The same condition in another window is another finding; the same window again is the same."""

    def ids(start: datetime) -> set[str]:
        cluster = Cluster(nodes=2, gpu_fault=only("row_remap_failed_last", lambda _: 1.0))
        return {f["finding_id"] for _, f in played(cluster.rounds(1, start))}

    assert ids(START) == ids(START)
    assert not ids(START) & ids(START.replace(hour=7))
