"""The collector over real connections: this node's exporter, and a fleet that installs nothing."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import exporter_standin as standin
import node_files
import pytest
from agent_fakes import Sink, until
from exporter_standin import Answer, Exporters, page, uuid_of
from structlog.testing import capture_logs

from graynode.collectors.base import CADENCES_S, Machine, NoSource, Round, utc_now
from graynode.collectors.batch import Batcher, Misfits
from graynode.collectors.carrier import Carrier
from graynode.collectors.context import GpuKey, JobContext, Placement
from graynode.collectors.dcgm.collector import Dcgm
from graynode.collectors.dcgm.http import Fetched
from graynode.collectors.dcgm.scraper import Pace, Scraper
from graynode.collectors.dcgm.targets import Target, TargetFiles, WrongTarget, fleet_target, own_target, parse_address
from graynode.collectors.outbox import Outbox
from graynode.pipeline.bus import BusUnavailable
from graynode.pipeline.schema import stable_id

Rows = dict[str, list[dict[str, Any]]]
FAST = {"interval_s": 0.05, "timeout_s": 0.5}


class Watching:
    """A collector and all rows that it has given."""

    def __init__(self, made: Dcgm) -> None:
        self.dcgm, self.rows = made, Rows()

    def until(self, done: Callable[[], Any]) -> None:
        """Rounds until something has been seen."""

        def look() -> bool:
            taken = self.dcgm.collect(Round(utc_now(), frozenset(CADENCES_S), 1.0))
            for table, some in node_files.checked(taken, self.dcgm.tables).items():
                self.rows.setdefault(table, []).extend(some)
            return bool(done())

        assert until(look), {table: rows[-3:] for table, rows in self.rows.items()}

    def some(self, table: str, **wanted: Any) -> list[dict[str, Any]]:
        """Rows of a table with these values."""
        return [r for r in self.rows.get(table, []) if all(r.get(k) == v for k, v in wanted.items())]


class Broken:
    """Where targets come from, broken the first time."""

    def __init__(self, scraper: Scraper) -> None:
        self.asked, self.well = 0, scraper.find

    def __call__(self) -> tuple[Sequence[Target], Sequence[str]]:
        self.asked += 1
        if self.asked == 1:
            raise ZeroDivisionError
        return self.well()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return node_files.node(tmp_path)


@pytest.fixture
def exporters() -> Iterator[Exporters]:
    """Node 7 behind /node/7/metrics has two GPUs; energy grows, as it does."""

    def growing(name: str, _gpu: int, value: Any) -> Any:
        return value + time.monotonic_ns() // 1000 if "ENERGY" in name else value

    with Exporters(lambda path: Answer(page(2, node=int(path.split("/")[2]), each=growing))) as made:
        yield made


@pytest.fixture
def watch() -> Iterator[Callable[..., Watching]]:
    made: list[Dcgm] = []

    def start(machine: Machine, *args: Any, **kw: Any) -> Watching:
        made.append(Dcgm(machine, *args, **{**FAST, **kw}))
        return Watching(made[-1])

    yield start
    for one in made:
        one.close()


def test_without_targets_there_is_no_source(machine: Machine) -> None:
    """The default reads nothing and says which keys would change that."""
    with pytest.raises(NoSource, match=r"dcgm\.targets, dcgm\.fleet or dcgm\.fleet_files"):
        Dcgm(machine)


def test_own_exporter_speaks_for_this_machine(
    machine: Machine, exporters: Exporters, watch: Callable[..., Watching]
) -> None:
    """Rows leave node and boot to the agent; no host row, which this machine's own collector gives; its GPUs count."""
    w = watch(machine, [exporters.url("/node/0/metrics")])
    w.until(lambda: len(w.some("gpu")) >= 4)
    assert {row.get("node_id") for row in w.rows["gpu"]} == {None}
    assert {row["gpu_uuid"] for row in w.rows["gpu"]} == {uuid_of(0), uuid_of(1)}
    assert "host" not in w.rows
    assert w.dcgm.host_fields() == {"gpus_read": 2}
    assert all(row["cadence_s"] >= 0.05 for row in w.rows["gpu"])
    assert {row["kind"] for row in w.rows["inventory"]} == {"gpu"}


def test_other_nodes_are_nodes_of_their_own_with_unconfirmed_identity(
    machine: Machine, exporters: Exporters, watch: Callable[..., Watching]
) -> None:
    """Each target: its node_id from cluster and instance, its name from the page, no boot id; the inventory says that
    nobody has confirmed it."""
    began = utc_now()
    w = watch(machine, fleet=[exporters.url(f"/node/{n}/metrics") for n in (3, 4)])
    w.until(lambda: len(w.some("host")) >= 6 and len({r["node"] for r in w.some("host")}) == 2)
    ids = {n: stable_id("exporter", "test", f"127.0.0.1:{exporters.port}/node/{n}/metrics") for n in (3, 4)}
    for n, node_id in ids.items():
        rows = w.some("gpu", node_id=node_id)
        assert {row["gpu_uuid"] for row in rows} == {uuid_of(0, n), uuid_of(1, n)}
        assert {row["node"] for row in rows} <= {f"gpu-node-{n}", f"127.0.0.1:{exporters.port}/node/{n}/metrics"}
        assert all("boot_id" not in row for row in rows)
        host = w.some("host", node_id=node_id)[-1]
        assert (host["gpus_read"], host["driver_version"], host["samples_taken"]) == (2, "580.105.08", 1.0)
        assert host["node_id_source"] == "exporter"
        node = w.some("inventory", node_id=node_id, kind="node")[-1]
        facts = json.loads(node["attributes"])
        assert (facts["identity"], facts["hostname_on_page"]) == ("unconfirmed", f"gpu-node-{n}")
    stamps = sorted(row["ts"] for row in w.some("gpu", node_id=ids[3], gpu_uuid=uuid_of(0, 3)))
    assert all(began - timedelta(seconds=5) < ts <= utc_now() + timedelta(seconds=5) for ts in stamps)
    assert len(set(stamps)) == len(stamps)


def test_bad_targets_cost_themselves(machine: Machine, exporters: Exporters, watch: Callable[..., Watching]) -> None:
    """One hangs, one refuses, one answers 500, one redirects, one drips, one gives nonsense: the good one is read at
    its pace, and each silence is told with its reason, once."""
    good = exporters.answer
    bad = {
        "10": Answer(hang_s=60.0), "11": Answer(status=500), "12": Answer(status=301, headers={"Location": "/x"}),
        "13": Answer(page(2), drip_s=0.05), "14": Answer(b"<html>hello</html>\n" * 9), "15": Answer(status=403),
        "16": Answer(b""),
    }  # fmt: skip
    exporters.answer = lambda path: bad.get(path.split("/")[2]) or good(path)
    fleet = [exporters.url(f"/node/{n}/metrics") for n in ("1", *bad)] + ["http://127.0.0.1:9/metrics"]
    w = watch(machine, fleet=fleet, interval_s=1.0, timeout_s=1.0)
    w.until(lambda: len(w.some("quality", field="*", table_name="gpu")) >= 9 and len(w.some("host")) > 20)
    id_of = {n: stable_id("exporter", "test", f"127.0.0.1:{exporters.port}/node/{n}/metrics") for n in ("1", *bad)}
    reasons = {n: [r["reason"] for r in w.some("quality", entity=id_of[n], field="*")] for n in id_of}
    assert reasons["1"] == []
    for n, says in (
        ("10", "no whole answer within 1 s"), ("11", "answers 500"), ("12", "redirects are not followed"),
        ("13", "no whole answer within 1 s"), ("14", "names no GPU"), ("15", "not permitted"),
        ("16", "names no GPU"),
    ):  # fmt: skip
        assert len(reasons[n]) == 1, reasons[n]
        assert says in reasons[n][0]
    assert {r["state"] for r in w.some("quality", entity=id_of["15"], field="*")} == {"not_permitted"}
    assert w.some("quality", entity=stable_id("exporter", "test", "127.0.0.1:9"), field="*")
    silent = w.some("host", node_id=id_of["11"])
    assert all(row["samples_taken"] == 0.0 and row["samples_expected"] == 1.0 for row in silent)
    heard = w.some("host", node_id=id_of["1"])
    assert all(row["samples_taken"] == 1.0 for row in heard)
    assert len(heard) >= 2
    hung = w.some("host", node_id=id_of["10"])
    assert all(
        row["collect_max_ms"] > 900 for row in hung
    )  # row 10 of docs/telemetry-traps.md: the time it takes is the signal


def test_silence_has_a_beginning_and_an_end(
    machine: Machine, exporters: Exporters, watch: Callable[..., Watching]
) -> None:
    """Down: the node and each of its GPUs say since when and why; back: both say so, with how long it was."""
    good = exporters.answer
    w = watch(machine, fleet=[exporters.url("/node/5/metrics")])
    w.until(lambda: w.some("gpu"))
    exporters.answer = lambda _path: Answer(status=503)
    w.until(lambda: w.some("host", samples_taken=0.0))
    node_id = w.some("host")[0]["node_id"]
    (down,) = w.some("quality", entity=node_id, field="*")
    assert (down["state"], "answers 503" in down["reason"], down["node_id"]) == ("error", True, node_id)
    gone = w.some("quality", field="*", state="stale")
    assert {row["entity"] for row in gone} == {uuid_of(0, 5), uuid_of(1, 5)}
    assert all("answers 503" in row["reason"] for row in gone)
    before = len(w.some("gpu"))
    exporters.answer = good
    w.until(lambda: len(w.some("gpu")) > before)
    back = w.some("quality", entity=node_id, field="*")[-1]
    assert (back["state"], "answers again after" in back["reason"]) == ("measured", True)
    assert {r["entity"] for r in w.some("quality", field="*", state="measured", reason="back on the page")} == {
        uuid_of(0, 5), uuid_of(1, 5),
    }  # fmt: skip


def test_dead_exporter_beside_nvml_blinds_nobody(
    machine: Machine, exporters: Exporters, watch: Callable[..., Watching]
) -> None:
    """Where NVML reads this machine, silence is said of the profiling fields alone; of other nodes it is as before."""
    w = watch(machine, [exporters.url("/node/0/metrics")], fleet=[exporters.url("/node/5/metrics")])
    w.dcgm.read_otherwise = lambda: True
    w.until(lambda: len({row["gpu_uuid"] for row in w.rows.get("gpu", ())}) == 4)
    exporters.answer = lambda _path: Answer(status=503)
    w.until(lambda: w.some("quality", entity="machine-1", state="error") and w.some("host", samples_taken=0.0))
    own = [row for row in w.rows["quality"] if row.get("node_id") is None]
    assert not [row for row in own if row["field"] == "*"]
    assert {"sm_active_ratio", "tensor_active_ratio"} <= {r["field"] for r in own if r["entity"] == "machine-1"}
    assert w.some("quality", node_id=w.some("host")[0]["node_id"], field="*", state="error")


def test_page_cut_on_the_way_keeps_its_whole_lines(
    machine: Machine, exporters: Exporters, watch: Callable[..., Watching]
) -> None:
    """Half a page: its rows are stored, the node says that it was cut, and no GPU is called gone."""
    body = page(8)
    exporters.answer = lambda _path: Answer(body, cut=len(body) // 2)
    w = watch(machine, fleet=[exporters.url("/node/5/metrics")])
    w.until(lambda: len(w.some("gpu")) >= 16)
    assert all("power_w" in row and "gr_engine_active_ratio" not in row for row in w.rows["gpu"])
    (told,) = w.some("quality", state="error", field="*")
    assert "closed after" in told["reason"]
    assert "8 GPUs were on the part that came" in told["reason"]
    assert not w.some("quality", state="stale")
    assert all(row["gpus_read"] is None for row in w.rows["host"])


def test_page_that_never_changes_is_a_hung_host_engine(machine: Machine) -> None:
    """Row 11 of docs/telemetry-traps.md: the exporter answers for days, DCGM behind it hangs. Five minutes of the same
    page with energy counters are told as stale."""
    dcgm = Dcgm(machine, fleet=["n1:9400"])
    node = dcgm.scraper.make(fleet_target("n1:9400"))
    frozen = Fetched(page(2))
    steps = [node.take(frozen, utc_now(), 10.0 * step, 0.01) for step in range(40)]
    assert len(steps[0]["gpu"]) == 2
    assert all("gpu" not in rows for rows in steps[1:])
    assert all(rows["host"][0]["samples_taken"] == 1.0 for rows in steps[:30])
    assert all(rows["host"][0]["samples_taken"] == 0.0 for rows in steps[30:])
    told = [row for rows in steps for row in rows.get("quality", []) if row["state"] == "stale"]
    assert {row["entity"] for row in told} == {node.node_id, uuid_of(0), uuid_of(1)}
    assert "has not changed for 300 s" in told[-1]["reason"]
    moved = Fetched(page(2, {**standin.DEFAULT, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 5551899999}))
    assert len(node.take(moved, utc_now(), 410.0, 0.01)["gpu"]) == 2
    quiet = Fetched(page(2, {"DCGM_FI_DEV_GPU_UTIL": 0}))
    idle = dcgm.scraper.make(fleet_target("n2:9400"))
    assert all(idle.take(quiet, utc_now(), 10.0 * step, 0.01)["gpu"] for step in range(40))


def test_targets_come_and_go_with_their_files(
    machine: Machine,
    exporters: Exporters,
    watch: Callable[..., Watching],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """file_sd as Prometheus has it: read again when it changes; one that is taken out ends, and its GPUs say so."""
    at = tmp_path / "targets.json"

    def write(*nodes: int) -> None:
        groups = [
            {"targets": [f"127.0.0.1:{exporters.port}"], "labels": {
                "__metrics_path__": f"/node/{n}/metrics", "instance": f"node-{n}", "node": f"rack1-{n}"}}
            for n in nodes
        ]  # fmt: skip
        at.write_text(json.dumps(groups))

    write(1, 2)
    w = watch(machine, fleet_files=[str(tmp_path / "*.json")], reread_s=0.05)
    w.until(lambda: {row["node"] for row in w.some("gpu")} == {"rack1-1", "rack1-2"})
    assert {row["node_id"] for row in w.some("gpu")} == {stable_id("exporter", "test", f"node-{n}") for n in (1, 2)}
    write(2, 3)
    w.until(lambda: w.some("gpu", node="rack1-3") and w.some("quality", node="rack1-1", field="*", state="stale"))
    assert "no longer configured" in w.some("quality", node="rack1-1", state="stale")[0]["reason"]
    with capture_logs() as logs:
        at.write_text("[{")
        w.until(lambda: any("targets cannot be read" in entry["event"] for entry in logs))
    asked = len(exporters.requests)
    w.until(lambda: len(exporters.requests) > asked + 4)


def test_target_files_that_hang_cost_their_targets_only(machine: Machine, exporters: Exporters) -> None:
    """A network file system that does not answer: what is named in the configuration is read all the same."""

    answered = threading.Event()

    def hanging() -> tuple[list[Target], list[str]]:
        answered.wait(60)
        return [], []

    dcgm = Dcgm(machine, fleet=[exporters.url("/node/1/metrics")], **FAST)
    dcgm.scraper = Scraper(dcgm.scraper.fixed, hanging, dcgm.scraper.make, Pace(**FAST))
    w = Watching(dcgm)
    w.until(lambda: w.some("gpu"))
    answered.set()
    dcgm.close()


def test_rows_that_nobody_takes_are_bounded(machine: Machine, exporters: Exporters) -> None:
    """An agent that does not ask loses the oldest, counted; memory does not grow."""
    dcgm = Dcgm(machine, fleet=[exporters.url(f"/node/{n}/metrics") for n in range(4)], interval_s=0.005, timeout_s=0.5)
    dcgm.scraper.start()
    try:
        assert until(lambda: dcgm.scraper.shed > 20)
        assert dcgm.scraper.waiting <= 256 + 3 * 4 + 1
    finally:
        dcgm.close()


def test_batch_of_a_fleet_is_more_than_memory_may_hold(machine: Machine) -> None:
    """A thousand nodes' messages of one batch go out in pieces: the bound is for a bus that takes nothing, and drops
    nothing while it takes."""
    batcher = Batcher(machine, 1, driver_load=lambda: None, now=utc_now, misfits=Misfits())
    sink = Sink()
    outbox = Outbox(sink, hold_bytes=1 << 20)
    carrier = Carrier(batcher, outbox, 5.0, time.monotonic)
    for n in range(1000):
        carrier.add({"host": [{"node_id": f"node-{n}", "load1": 1.0}], "event": [_event(n)]}, utc_now())
    carrier.last = True
    carrier.run()
    assert carrier.emptied
    assert outbox.sent.dropped == 0
    assert len(sink.rows("host")) == len(sink.rows("event")) == 1000
    assert [topic for topic, _ in sink.sent[:1000]] == ["graynode.events"] * 1000
    sink.trouble = BusUnavailable("away")
    for n in range(1000):
        carrier.add({"host": [{"node_id": f"node-{n}", "load1": 1.0}]}, utc_now())
    calls = sink.calls
    carrier.run()
    assert sink.calls - calls <= 2  # a bus that is away is asked once a carrying, not once a piece
    assert outbox.held_bytes <= 1 << 20


def _event(n: int) -> dict[str, Any]:
    return {"node_id": f"node-{n}", "event_id": str(n), "kind": "x"}


def test_job_that_another_source_knows(machine: Machine, exporters: Exporters, watch: Callable[..., Watching]) -> None:
    """On this node Slurm's or the kubelet's word is better than a pod's name; other nodes have only the labels."""
    exporters.answer = lambda _path: Answer(page(2, more={"pod": "p", "namespace": "n"}))
    context = JobContext()
    context.place("slurm", {GpuKey(uuid_of(0)): Placement("4711")})
    w = watch(machine, [exporters.url("/node/0/metrics")], context=context)
    w.until(lambda: w.some("gpu"))
    assert w.some("gpu", gpu_uuid=uuid_of(0))[0]["job_id"] is None
    assert w.some("gpu", gpu_uuid=uuid_of(1))[0]["job_id"] == "n/p"


def test_scraping_that_ends_by_itself_is_an_error_and_begins_again(machine: Machine, exporters: Exporters) -> None:
    """A fault of ours is counted by the agent like any collector's, and does not last."""
    dcgm = Dcgm(machine, fleet=[exporters.url("/node/1/metrics")], **FAST)
    dcgm.scraper = Scraper(dcgm.scraper.fixed, Broken(dcgm.scraper), dcgm.scraper.make, Pace(**FAST))
    w = Watching(dcgm)
    dcgm.scraper.start()
    assert until(lambda: bool(dcgm.scraper.failed))
    with pytest.raises(RuntimeError, match="scraping had ended: ZeroDivisionError"):
        dcgm.collect(Round(utc_now(), frozenset(CADENCES_S)))
    w.until(lambda: w.some("gpu"))
    dcgm.close()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ftp://n1/metrics", "wanted is http://host:port/metrics"),
        ("http://", "wanted is"),
        ("http://n1:99999/metrics", "Port out of range"),
        ("http://user:pw@n1:9400/", "no credentials in an address; use dcgm.authorization_file"),
        ("http://n1/met rics", "without blanks"),
        ("http://n1/\r\nX: y", "printable ASCII"),
    ],
)
def test_address_that_is_none(text: str, says: str) -> None:
    """Said at the start with what is wanted; nothing of it reaches a request."""
    with pytest.raises(WrongTarget, match=says):
        own_target(text)


def test_addresses_as_prometheus_writes_them() -> None:
    """host:port, URLs, IPv6, scheme and path labels; the instance is the address unless a label says another."""
    assert parse_address("http://[::1]:9400").instance == "[::1]:9400"
    assert fleet_target("n1:9400").instance == "n1:9400"
    assert fleet_target("n1:9400", {"__scheme__": "https"}).address.tls
    assert fleet_target("n1:9400", {"__metrics_path__": "/gpu", "instance": "n1"}).address.path == "/gpu"
    assert fleet_target("https://n1/m").instance == "n1:443/m"
    assert fleet_target("n1:9400").node_id("a") != fleet_target("n1:9400").node_id("b")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "cannot be used"),
        ("{}", "a list of objects"),
        ('[{"targets": "n1"}]', "a list of objects with targets"),
        ('[{"targets": [7]}]', "a target is not a text but int"),
        ('[{"targets": ["n 1:9400"]}]', "without blanks"),
        ("[" * 100_000, "cannot be used"),
        ("- targets: [n1]", "cannot be used"),
    ],
)
def test_target_file_that_cannot_be_used_keeps_its_last_targets(tmp_path: Path, text: str, says: str) -> None:
    """Half-written, of another form, or hostile: said once, and the fleet goes on being read."""
    at = tmp_path / "a.json"
    at.write_text('[{"targets": ["n1:9400", "n2:9400"]}]')
    files = TargetFiles([str(tmp_path / "*.json")])
    assert [t.instance for t in files.read()[0]] == ["n1:9400", "n2:9400"]
    at.write_text(text)
    targets, trouble = files.read()
    assert [t.instance for t in targets] == ["n1:9400", "n2:9400"]
    assert len(trouble) == 1
    assert says in trouble[0]
    assert files.read()[1] == []
    at.unlink()
    assert files.read() == ([], [])


def test_target_files_in_yaml(tmp_path: Path) -> None:
    """Prometheus reads both; what is no list of targets is refused and the last targets stay."""
    at = tmp_path / "a.yml"
    at.write_text("- targets: [n1:9400, 'n2:9400']\n  labels: {rack: r1, since: 2026-01-02}\n")
    files = TargetFiles([str(tmp_path / "*.yml")])
    assert [t.instance for t in files.read()[0]] == ["n1:9400", "n2:9400"]
    for text, says in (
        ("- targets: [n1:9400\n", "not YAML: "),
        ("!!python/object/apply:os.system [id]\n", "not YAML: "),
        ("targets: n1\n", "wanted is a list"),
        ("- targets: [[n1]]\n", "a target is not a text but list"),
        ("- targets: [n1:9400]\n  labels: {a: [1]}\n", "a label's value is no text"),
    ):
        at.write_text(text)
        targets, (said,) = files.read()
        assert says in said
        assert len(targets) == 2


def test_a_bomb_of_aliases_costs_nothing(tmp_path: Path) -> None:
    """Thirty lines of YAML whose text would be gigabytes."""
    lines = ["- &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"- &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30)]
    (tmp_path / "a.yml").write_text("\n".join([*lines, "- targets: [*a29]", "  labels: {b: *a29}"]))
    _, (said,) = TargetFiles([str(tmp_path / "*.yml")]).read()
    assert len(said) < 300


def test_yaml_without_its_library_says_what_to_install(tmp_path: Path) -> None:
    """The agent's base install has none."""
    (tmp_path / "a.yml").write_text("- targets: [n1:9400]\n")
    code = f"""
import sys
sys.modules["yaml"] = None
from graynode.collectors.dcgm.targets import TargetFiles
print(TargetFiles([{str(tmp_path / "*.yml")!r}]).read()[1][0])
"""
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "pip install 'graynode[dcgm]'" in done.stdout
