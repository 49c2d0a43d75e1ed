"""Links: contiguous outages against the collective's timeout, the sum of pieces, flaps, errors, rate and NVLinks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import numpy as np
import polars as pl
from window_rounds import START, Cluster, Columns

from graynode.detectors.base import TOLD, Round, State
from graynode.detectors.links import Links, timeout
from graynode.detectors.thresholds import for_site, shipped

PORT = 2
"""Row of port mlx5_0/1 of node 1."""


def told(c: Cluster, windows: int, state: State | None = None) -> pl.DataFrame:
    detector, held, found = Links(), state or {}, []
    for round_ in c.rounds(windows):
        scored = detector.score(round_, held)
        held = scored.state
        found.append(scored.findings)
    return pl.concat(found).filter(TOLD)


def outages(pieces: Sequence[tuple[int, float, float]]) -> Cluster:
    """Window, seconds down in it, the outage's length so far."""

    def fault(w: int, c: Columns) -> None:
        for window, down_s, outage_s in pieces:
            if w == window:
                c["down_s_sum"][PORT], c["outage_s_max"][PORT] = down_s, outage_s
                c["downs_sum"][PORT] = 0.0 if outage_s > down_s else 1.0

    return Cluster(nodes=4, gpus=1, link_fault=fault)


def test_nine_seconds_in_pieces_eight_at_once_and_thirty_one_at_once_are_three_findings() -> None:
    """No piece of the first ends a job; the second ends those before NCCL 2.23, the third all of them."""
    pieces = told(outages([(5, 3.0, 3.0), (45, 3.0, 3.0), (85, 3.0, 3.0)]), 100)
    at_once = told(outages([(5, 8.0, 8.0)]), 20)
    long = told(outages([(5, 20.0, 20.0), (6, 11.0, 31.0)]), 20)
    said = [
        (f.tail(1)["signal"][0], f.tail(1)["cause"][0], f.tail(1)["severity"][0], f.tail(1)["value"][0])
        for f in (pieces, at_once, long)
    ]
    assert said == [
        ("down_in_pieces", "link_flap", "ticket", 9.0),
        ("outage_7s", "link_down", "ticket", 8.0),
        ("outage_30s", "link_down", "page", 31.0),
    ]
    assert "in pieces of at most 3 s" in pieces["message"][0]
    assert "NCCL jobs before 2.23" in at_once["message"][0]
    assert "every NCCL job" in long.tail(1)["message"][0]
    assert set(pl.concat([pieces, at_once, long]).get_column("link")) == {"mlx5_0/1"}
    assert set(pl.concat([pieces, at_once, long]).get_column("node")) == {"node001"}


def test_nine_seconds_spread_over_more_than_an_hour_are_not_told() -> None:
    """The sum is that of the last hour."""
    assert told(outages([(0, 3.0, 3.0), (130, 3.0, 3.0), (260, 3.0, 3.0)]), 270).is_empty()


def test_three_short_drops_in_ten_minutes_are_a_flap() -> None:
    """However short they are."""
    found = told(outages([(2, 1.0, 1.0), (8, 1.0, 1.0), (14, 1.0, 1.0)]), 20)
    assert set(found.get_column("signal")) == {"flap"}
    assert set(found.get_column("cause")) == {"link_flap"}


def test_a_port_that_never_was_active_is_nobody_s_fault() -> None:
    """An empty cage is down for ever and says nothing."""

    def empty_cage(_: int, c: Columns) -> None:
        c["state"][PORT] = "down"
        c["down_s_sum"][PORT], c["outage_s_max"][PORT] = 30.0, 86_400.0

    assert told(Cluster(nodes=4, link_fault=empty_cage), 20).is_empty()


def test_a_port_that_was_active_and_stays_down_is_told_while_it_is() -> None:
    """Since when stays the first second of it."""

    def pulled(w: int, c: Columns) -> None:
        if w >= 3:
            c["state"][PORT] = "down"
            c["down_s_sum"][PORT], c["outage_s_max"][PORT] = 30.0, 30.0 * (w - 2)

    found = told(Cluster(nodes=4, link_fault=pulled), 10)
    assert found.height == 7
    assert found.get_column("since").n_unique() == 1


def test_a_port_at_half_of_its_rate_is_told_even_if_it_never_was_faster_here() -> None:
    """The same port of the other nodes says what it should be."""

    def slow(_: int, c: Columns) -> None:
        c["rate_gbps_mean"][PORT] = 200.0

    found = told(Cluster(nodes=5, link_fault=slow), 8)
    assert set(found.get_column("signal")) == {"rate"}
    assert set(found.get_column("baseline")) == {400.0}
    assert set(found.get_column("peers")) == {4}


def test_errors_of_a_link_that_always_had_some_are_not_news_and_those_of_a_clean_one_are() -> None:
    """Counted in hours with errors, against the link's own past and the fleet's."""

    def errors(w: int, c: Columns) -> None:
        c["symbol_errors_delta"][0] = 5.0  # this one in every hour of its life
        if w >= 0:
            c["symbol_errors_delta"][PORT] = 5.0

    c = Cluster(nodes=4, link_fault=errors)
    past = [c.round(w, c.start_of(w, 3600), 3600) for w in range(-24 * 30, 0)]
    frames = {t: pl.concat([getattr(r, t) for r in past]) for t in ("gpu", "link", "host")}
    state = Links().learn(replace(past[0], **frames), {})
    found = []
    for w in range(12):
        scored = Links().score(c.round(w, c.start_of(w, 3600), 3600), state)
        state = scored.state
        found.append(scored.findings.filter(TOLD))
    told_errors = pl.concat(found)
    assert set(told_errors.get_column("link")) == {"mlx5_0/1"}
    assert set(told_errors.get_column("node")) == {"node001"}
    assert set(told_errors.get_column("cause")) == {"link_errors"}
    assert told_errors.get_column("p_value").max() <= 1e-6


def test_a_lost_nvlink_is_told_on_its_gpu_and_a_sleeping_one_is_not() -> None:
    """Compared with what was active before; sleep is a power state."""

    def lost(w: int, c: Columns) -> None:
        if w >= 4:
            c["nvlink_links_active_last"][3], c["nvlink_links_inactive_last"][3] = 17.0, 1.0
            c["nvlink_links_active_last"][5] = 16.0  # two asleep, none inactive

    found = told(Cluster(nodes=2, gpu_fault=lost), 12)
    assert set(found.get_column("gpu_uuid")) == {"GPU-000-3"}
    assert set(found.get_column("cause")) == {"nvlink_fault"}


def test_an_entity_s_other_signals_stay_in_the_evidence_of_its_one_finding() -> None:
    """One finding per link and window; nothing that was seen is lost."""
    found = told(outages([(2, 10.0, 10.0), (6, 10.0, 10.0), (10, 10.0, 10.0)]), 12).tail(1)
    assert found["signal"][0] == "outage_7s"
    assert [o["signal"] for o in json.loads(found["evidence"][0])["also"]] == ["flap"]


def test_an_nvlink_is_the_platforms_and_its_errors_are_told_once() -> None:
    """An NVLink that was down is an NVLink fault and a ticket, not a network page; its errors are left to the sums."""

    def fault(w: int, c: Columns) -> None:
        c["symbol_errors_delta"][PORT] = 1000.0
        if w == 5:
            c["down_s_sum"][PORT], c["outage_s_max"][PORT], c["downs_sum"][PORT] = 30.0, 40.0, 1.0

    detector, state, found = Links(), {}, []
    for round_ in Cluster(nodes=4, link_fault=fault).rounds(20):
        nvlinks = round_.link.with_columns(link_kind_last=pl.lit("nvlink"))
        scored = detector.score(replace(round_, link=nvlinks), state)
        state = scored.state
        found.append(scored.findings)
    said = pl.concat(found).filter(TOLD)
    assert set(said["cause"]) == {"nvlink_fault"}
    assert set(said["severity"]) == {"ticket"}
    assert set(said["signal"]) == {"outage_30s"}
    assert "what ran over it" in said["message"][0]


def test_a_port_that_flaps_every_eight_minutes_is_told_by_its_penalty() -> None:
    """Never three times in ten minutes, and still no port for a collective; once an hour it is not told."""

    def played(windows: range) -> pl.DataFrame:
        detector, state, found, c = Links(), {}, [], outages([(w, 1.0, 1.0) for w in windows])
        for w in (0, *windows):  # windows between change nothing
            scored = detector.score(c.round(w, c.start_of(w)), state)
            state = scored.state
            found.append(scored.findings)
        return pl.concat(found).filter(TOLD)

    often = played(range(2, 90, 16))
    assert set(often.get_column("signal")) <= {"flap", "down_in_pieces"}
    assert "again and again, minutes apart" in often["message"][0]
    assert played(range(2, 500, 120)).is_empty()


def test_a_site_s_own_timeout_decides_which_outage_ends_jobs() -> None:
    """Eleven seconds are nothing where collectives wait for twenty, twenty-one end everything."""
    own = for_site(shipped(), timeout(20.0), "own")

    def played(seconds: float) -> pl.DataFrame:
        detector, state, found = Links(own), {}, []
        for round_ in outages([(5, seconds, seconds)]).rounds(8):
            scored = detector.score(round_, state)
            state = scored.state
            found.append(scored.findings)
        return pl.concat(found).filter(TOLD)

    short = played(11.0)
    assert "page" not in short["severity"].to_list()
    assert set(short["signal"]) <= {"down_in_pieces"}
    (said,) = played(21.0)["message"].to_list()
    assert "every job whose collectives give up after 20 s" in said


def test_errors_at_a_rate_that_no_link_should_have_are_told_with_kind_and_source() -> None:
    """More than 120 symbol errors an hour, for two minutes, and the limit's source beside it."""

    def noisy(_: int, c: Columns) -> None:
        c["symbol_errors_delta"][PORT] = 3.0

    found = told(Cluster(nodes=4, link_fault=noisy), 6)
    assert set(found.get_column("signal")) == {"error_rate"}
    assert found["ts"].n_unique() == 3
    assert "symbol errors at 0.1 errors/s, where 0.0333 is the limit" in found["message"][0]
    assert json.loads(found["evidence"][0])["limit_from"] == "NVSentinel: 120 an hour"


def test_one_bad_port_of_several_is_named_among_its_neighbours() -> None:
    """A cable, not the node: the other port is well; and all of them at once are the node's side."""

    def both(w: int, c: Columns) -> None:
        if w == 5:
            for port in (PORT, PORT + 1):
                c["down_s_sum"][port] = c["outage_s_max"][port] = 9.0
                c["downs_sum"][port] = 1.0

    one = told(outages([(5, 9.0, 9.0)]), 7)
    assert one["message"][0].endswith("; 1 of the node's 2 ports are well")
    assert "all 2 ports of the node are concerned" in told(Cluster(nodes=4, link_fault=both), 7)["message"][0]


def test_kinds_of_ports_have_laws_of_their_own() -> None:
    """InfiniBand ports that err every hour do not excuse an Ethernet port that errs where none of its kind ever did."""
    c, kinds = Cluster(nodes=16, gpus=1), pl.Series(["infiniband"] * 16 + ["ethernet"] * 16)
    errors = np.repeat([1.0, 0.0], 16)

    def mixed(r: Round) -> Round:
        return replace(r, link=r.link.with_columns(link_kind_last=kinds, symbol_errors_delta=pl.Series(errors)))

    hour = mixed(c.round(0, START - timedelta(hours=1), 3600))
    hours = pl.Series("ts", [START - timedelta(hours=h) for h in range(1, 841)]).cast(pl.Datetime("us", "UTC"))
    past = replace(hour, link=hour.link.drop("ts").join(hours.to_frame(), how="cross"))
    detector = Links()
    state = detector.learn(past, {})
    errors[20] = 1.0
    found = detector.score(mixed(c.round(0, START)), state).findings.filter(pl.col("signal") == "errors")
    assert found["node_id"].to_list() == ["id-node010"]
    assert found["score"][0] > 5.0


def test_a_gpu_that_never_had_all_of_its_model_s_nvlinks_is_told() -> None:
    """Seventeen from the first day on, where all others have eighteen; a card without a bridge has none to lose."""

    def never(_: int, c: Columns) -> None:
        c["nvlink_links_active_last"][7], c["nvlink_links_inactive_last"][7] = 17.0, 1.0
        c["nvlink_links_active_last"][9], c["nvlink_links_inactive_last"][9] = 0.0, 18.0

    found = told(Cluster(nodes=4, gpu_fault=never), 6)
    assert set(found["gpu_uuid"]) == {"GPU-000-7"}
    assert "17 of 18 NVLinks are active" in found["message"][0]


def test_a_fleet_of_two_speeds_expects_neither_of_them() -> None:
    """A third of the nodes has slower ports by design: they are not told; one that was faster before is."""

    def two_speeds(w: int, c: Columns) -> None:
        slow = np.arange(24) >= 16
        c["rate_gbps_mean"][slow] = 200.0
        if w >= 3:
            c["rate_gbps_mean"][PORT] = 100.0

    found = told(Cluster(nodes=12, gpus=1, link_fault=two_speeds), 10)
    assert set(found["node_id"]) == {"id-node001"}
    assert set(found["signal"]) == {"rate"}
    assert found["baseline"][0] == 400.0
