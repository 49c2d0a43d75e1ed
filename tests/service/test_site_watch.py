"""A running ``detect`` and its site's thresholds: shadow, acceptance, node-days, drift; labels that teach nothing."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
from people_site import CLUSTER, Site, node_days
from window_rounds import START, Cluster, Columns

from graynode.detectors.base import Round
from graynode.detectors.thresholds import shipped
from graynode.pipeline.codec import decode
from graynode.pipeline.schema import FINDINGS, INCIDENTS
from graynode.service import labels, thresholds
from graynode.service.detect import Detect
from graynode.service.incident_bus import from_message
from graynode.service.rounds import Rounds

PARTITION = "graynode.samples/0"
SICK = 11


def lanes(w: int, c: Columns) -> None:
    if w >= 5:
        c["pcie_width_last"][SICK] = 8.0


def gone(w: int, c: Columns) -> None:
    lanes(w, c)
    c["row_remap_failed_last"] = c["pcie_width_last"] * 0
    if w >= 5:
        c["row_remap_failed_last"][3] = 1.0


def land(site: Site, rounds: Sequence[Round]) -> None:
    """Window rows as the pipeline commits them."""
    end = rounds[-1].start + timedelta(seconds=rounds[-1].window_s)
    for table in ("gpu", "link", "host"):
        frame = pl.concat([getattr(r, table) for r in rounds]).with_columns(cluster=pl.lit(CLUSTER))
        site.lake.write(f"{table}_30s", frame, marks={f"closed_through:{PARTITION}": int(end.timestamp())})


class Role:
    """A ``Detect`` over a site, with a clock that the test moves."""

    def __init__(self, site: Site, now: datetime) -> None:
        self.now = now
        self.detect = Detect(site.config, site.bus, site.lake, clock=lambda: self.now)

    def go(self, now: datetime) -> None:
        self.now = now
        while self.detect.step():
            pass


def heard(site: Site, topic: str, table: str) -> list[dict[str, Any]]:
    """Rows of one table on a topic."""
    found: list[dict[str, Any]] = []
    with closing(site.bus.consumer([topic], "test-heard", dict.fromkeys)) as consumer:
        while batch := consumer.poll(0.05):
            for r in batch:
                if r.message.headers["table"] == table:
                    found += [from_message(r.message)] if table == "incident" else decode(r.message).to_pylist()
    return found


def small(folder: Path, **detect: Any) -> Site:
    return Site(folder, **{"detectors": ["rules", "pcie", "thermal"], **detect})


def after(w: int) -> datetime:
    return Cluster.start_of(w) + timedelta(seconds=20)


def test_in_shadow_nobody_is_told_until_somebody_accepts_and_rules_speak_from_the_start(tmp_path: Path) -> None:
    """Accepting while it runs is enough: the next look takes the set up, and a restart knows it."""
    site, cluster = small(tmp_path), Cluster(nodes=2, gpu_fault=gone)
    rounds = list(cluster.rounds(40))
    land(site, rounds[:20])
    role = Role(site, after(20))
    role.go(after(20))
    assert {i["cause"] for i in heard(site, INCIDENTS, "incident")} == {"memory_degraded"}
    narrow = [f for f in heard(site, FINDINGS, "finding") if f["detector"] == "pcie"]
    assert narrow
    assert not any(f["live"] for f in narrow)
    thresholds.accept(site.config, "shipped", why="seen enough", by="Kim", now=after(20))
    site.land()
    land(site, rounds[20:30])
    role.go(after(30) + timedelta(minutes=1))
    role.detect.close()
    assert {i["cause"] for i in heard(site, INCIDENTS, "incident")} == {"memory_degraded", "pcie_degraded"}
    land(site, rounds[30:])
    second = Role(site, after(40))
    second.go(after(40) + timedelta(minutes=2))
    second.detect.close()
    late = [f for f in heard(site, FINDINGS, "finding") if f["ts"] >= Cluster.start_of(30) and f["detector"] == "pcie"]
    assert late
    assert all(f["live"] for f in late)


def test_a_detector_can_be_kept_in_shadow_by_itself(tmp_path: Path) -> None:
    """The site speaks; this one of its detectors does not."""
    site = small(tmp_path, shadow=False, shadow_detectors=["pcie"])
    land(site, list(Cluster(nodes=2, gpu_fault=gone).rounds(20)))
    role = Role(site, after(20))
    role.go(after(20))
    role.detect.close()
    assert {i["cause"] for i in heard(site, INCIDENTS, "incident")} == {"memory_degraded"}


def test_cold_and_alone_it_says_nothing_false(tmp_path: Path) -> None:
    """No history, no set, healthy nodes, live at once: provisional or no baselines, and nobody is told of anything."""
    site = Site(tmp_path, shadow=False)
    land(site, list(Cluster(nodes=3).rounds(40)))
    role = Role(site, after(40))
    role.go(after(40))
    role.detect.close()
    assert heard(site, INCIDENTS, "incident") == []


def test_a_day_that_ends_is_on_the_bus_and_a_restart_in_its_middle_loses_nothing(tmp_path: Path) -> None:
    """Killed in the evening, taken up from the landed state: the same rows as without the restart."""
    evening = datetime(2026, 3, 2, 23, 50, tzinfo=UTC)
    told = []
    for name, cut in (("unbroken", 0), ("broken", 10)):
        site = small(tmp_path / name)
        rounds = list(Cluster(nodes=2).rounds(24, start=evening))
        first = evening + timedelta(seconds=30 * (cut or 24) + 20)
        land(site, rounds[: cut or 24])
        role = Role(site, first)
        role.go(first)
        role.detect.close()
        if cut:
            site.land()
            land(site, rounds[cut:])
            role = Role(site, evening + timedelta(seconds=30 * 24 + 20))
            role.go(role.now)
            role.detect.close()
        site.land()
        rows = (
            site.lake.read("node_day").unique(["node_id", "detector", "signal"]).sort("node_id", "detector", "signal")
        )
        told.append(rows.drop("threshold", "ts").to_dicts())
    assert told[0] == told[1]
    assert {row["windows"] for row in told[0]} == {20}
    assert {row["node"] for row in told[0]} == {"node000", "node001"}


def test_labels_teach_nothing(tmp_path: Path) -> None:
    """With verdicts on everything and without any, detectors find and remember the same."""
    answers = []
    for name in ("none", "many"):
        site = small(tmp_path / name, shadow=False)
        land(site, list(Cluster(nodes=2, gpu_fault=lanes).rounds(20)))
        if name == "many":
            site.incident("aaaa", "node001", START)
            site.write("label", [{"ts": START, "incident_id": "aaaa", "node_id": "id-node001", "verdict": "false"}])
            day = {"ts": START, "period": "2026-03-02", "verdict": "false"}
            site.write("label", [{**day, "node_id": f"id-node00{i}"} for i in range(2)])
        found = Rounds(site.lake, CLUSTER, Detect(site.config, site.bus, site.lake)._rounds.detectors)
        results = [found.score(r) for r in found.rounds(START, START + timedelta(seconds=600))]
        answers.append((pl.concat([r.findings for r in results]), found.states))
    assert answers[0][0].equals(answers[1][0])
    assert answers[0][0].height
    for detector, state in answers[0][1].items():
        for frame, held in state.items():
            assert held.equals(answers[1][1][detector][frame]), (detector, frame)


def test_drift_is_a_line_of_the_digest_and_opens_nothing(tmp_path: Path) -> None:
    """Once a day, after yesterday has landed; the finding names signals, counts and the way out."""
    site = small(tmp_path, budget_per_node_day=2e-3)
    site.lake.write("node_day", node_days(120, 30, last=date(2026, 2, 20)))
    thresholds.fit(site.config, now=datetime(2026, 2, 21, 9, tzinfo=UTC))
    site.land()
    chosen = site.lake.read("threshold")["set_id"][0]
    thresholds.accept(site.config, chosen, why="calm", now=datetime(2026, 2, 21, 10, tzinfo=UTC))
    site.land()
    later = node_days(120, 7, last=date(2026, 3, 1), seed=4).with_columns(pl.col("maximum") * 2)
    site.lake.write("node_day", later)
    land(site, list(Cluster(nodes=2).rounds(12)))
    role = Role(site, after(12))
    role.go(after(12))
    assert role.detect._rounds.thresholds.version == f"site {chosen}"
    role.detect.close()
    drift = [f for f in heard(site, FINDINGS, "finding") if f["detector"] == "thresholds"]
    assert [f["signal"] for f in drift] == ["drift"]
    assert drift[0]["severity"] == "digest"
    assert "slow.clock" in drift[0]["message"]
    assert "graynode thresholds fit" in drift[0]["action"]
    assert heard(site, INCIDENTS, "incident") == []


def test_a_budget_that_is_not_kept_is_a_line_of_the_digest_whatever_set_is_in_force(tmp_path: Path) -> None:
    """Twelve findings on 3,600 healthy node-days where 0.7 were due; with one of them it is chance and not told."""
    for name, told in (("over", 12), ("chance", 1)):
        site = small(tmp_path / name)
        odd = {(n, n): 0.9 for n in range(told)}
        site.lake.write("node_day", node_days(120, 30, last=date(2026, 3, 1), odd=odd))
        land(site, list(Cluster(nodes=2).rounds(3)))
        role = Role(site, after(3))
        role.go(after(3))
        role.detect.close()
        said = [f for f in heard(site, FINDINGS, "finding") if f["detector"] == "thresholds"]
        assert [f["signal"] for f in said] == (["budget"] if name == "over" else [])
        assert all("12 findings on 3,600 healthy node-days are over the budget" in f["message"] for f in said)


def test_other_thresholds_make_the_detectors_anew_and_leave_their_memory(tmp_path: Path) -> None:
    """What is stored of a round has the same keepers before and after."""
    site = small(tmp_path, shadow=False)
    rounds = Rounds(site.lake, CLUSTER, Detect(site.config, site.bus, site.lake)._rounds.detectors)
    before = rounds.detectors["thermal"]
    rounds.use(shipped())
    assert rounds.detectors["thermal"] is not before
    assert set(rounds.keepers) == {"rules", "pcie", "thermal", "node_days"}


def test_a_repair_by_the_command_line_ends_incidents_at_once(tmp_path: Path) -> None:
    """The hard-event path reads what people say; the row lands in the lake as well."""
    from graynode.detectors.incidents import Incidents
    from graynode.service.hard_events import GROUP, TOPICS, HardEvents
    from graynode.service.incident_bus import Publisher

    site, now = small(tmp_path), START + timedelta(hours=1)
    site.incident("aaaa", "node001", START)
    incidents = Incidents(CLUSTER)
    incidents.restore(site.lake.read("incident").to_dicts())
    labels.repair(site.config, "node001", what="riser", now=now)
    producer = site.bus.producer()
    hard = HardEvents(site.bus.consumer(TOPICS, GROUP), incidents, Publisher(producer, CLUSTER), lambda: now)
    hard.step()
    producer.close()
    (over,) = heard(site, INCIDENTS, "incident")
    assert (over["incident_id"], over["state"]) == ("aaaa", "resolved")
    site.land()
    assert site.lake.read("repair")["what"].to_list() == ["riser"]
