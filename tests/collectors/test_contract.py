"""What every collector promises, asked of all that are in the list.

A new collector needs one line in ``EXAMPLES``: how to make it with something to read.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import agent_fakes
import ethtool_standin
import exporter_standin
import kubernetes_example
import node_files
import nvml_rig
import nvml_standin
import pytest
import slurm_example

from graynode.collectors import COLLECTORS, load
from graynode.collectors.base import CADENCES_S, Collector, Machine, NoSource, Round, Rows
from graynode.pipeline.codec import to_batch
from graynode.pipeline.schema import TABLES, Field

NAMES = [name for name, _ in COLLECTORS]
ALL = frozenset(CADENCES_S)
T0 = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
SAMPLED = ("gpu", "link", "host")
PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "int32": (int,), "int64": (int,), "float32": (int, float), "float64": (int, float), "bool": (bool,),
    "string": (str,), "timestamp": (datetime,),
}  # fmt: skip


def _nvml(folder: Path) -> Collector:
    scenario = nvml_standin.h100(folder / "scenario", gpus=2)
    scenario.write()
    machine = node_files.node(folder, sys=nvml_standin.pci_tree(folder / "sys", scenario))
    env = nvml_standin.build(nvml_rig.CACHE).env(scenario.path)
    made: Collector = load("nvml")(machine, env=env, patience=nvml_rig.SOON)
    return made


def _kernel_log(folder: Path) -> Collector:
    log = folder / "kmsg"
    log.write_text("4,7,1000,-;NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.\n4,8,1001,-;usb 1-1: new\n")
    made: Collector = load("kernel_log")(node_files.node(folder), log, "kmsg")
    return made


def _infiniband(folder: Path) -> Collector:
    machine = node_files.node(folder)
    shutil.copytree(node_files.FIXTURES / "gpud/infiniband-h100", machine.sys / "class/infiniband")
    made: Collector = load("infiniband")(machine)
    return made


def _ethtool(folder: Path) -> Collector:
    node_files.Ports(folder / "sys").net("eth0")
    ports = ethtool_standin.Standin(eth0=ethtool_standin.Fake(memory=ethtool_standin.qsfp28()))
    made: Collector = load("ethtool")(node_files.node(folder), kernel=ports.kernel())
    return made


def _services(folder: Path) -> Collector:
    memory = folder / "sys/devices/system/edac/mc/mc0"
    for count in ("ce_count", "ue_count"):
        node_files.write(memory / count, "1\n")
    made: Collector = load("services")(node_files.node(folder))
    return made


def _host(folder: Path) -> Collector:
    made: Collector = load("host")(node_files.node(folder, proc=Path("/proc"), sys=Path("/sys")))
    return made


def _dcgm(folder: Path) -> Collector:
    exporter = exporter_standin.shared()
    made = load("dcgm")(node_files.node(folder), [exporter.url()], interval_s=0.02, timeout_s=5.0)
    made.scraper.start()
    assert agent_fakes.until(lambda: made.scraper.waiting > 0)
    collector: Collector = made
    return collector


def _replay(folder: Path) -> Collector:
    rows = [{"table": "host", "ts": (T0 + timedelta(seconds=n)).isoformat(), "load1": 1.0} for n in range(10)]
    recording = folder / "recording.jsonl"
    recording.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    made: Collector = load("replay")(node_files.node(folder), recording)
    return made


def _simulated(folder: Path) -> Collector:
    made: Collector = load("simulated")(node_files.node(folder), nodes=3, gpus_per_node=2)
    return made


EXAMPLES: dict[str, Callable[[Path], Collector]] = {
    "nvml": _nvml, "kernel_log": _kernel_log, "infiniband": _infiniband, "ethtool": _ethtool, "services": _services,
    "host": _host, "dcgm": _dcgm, "kubernetes": kubernetes_example.on_a_node,
    "kubernetes_cluster": kubernetes_example.of_a_cluster, "slurm": slurm_example.on_a_node,
    "slurm_cluster": slurm_example.of_a_cluster, "steps": slurm_example.steps, "job_log": slurm_example.job_log,
    "replay": _replay, "simulated": _simulated,
}  # fmt: skip


@pytest.fixture(params=NAMES)
def collector(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Collector]:
    assert request.param in EXAMPLES, f"{request.param} has no line in EXAMPLES: say how to give it something to read"
    made = EXAMPLES[request.param](tmp_path)
    yield made
    made.close()


def _rounds(collector: Collector, count: int, due: Callable[[int], frozenset[int]] = lambda n: ALL) -> list[Rows]:
    """Rounds a second apart; a source that starts in the background is given a few seconds of them first."""
    first = collector.collect(Round(T0, ALL))
    for n in range(200):
        if any(first.values()):
            break
        first = collector.collect(Round(T0 + timedelta(seconds=n + 1), ALL, 1.0))
    return [first, *(collector.collect(Round(T0 + timedelta(seconds=300 + n), due(n), 1.0)) for n in range(1, count))]


def _each(rounds: list[Rows]) -> Iterator[tuple[str, dict[str, Any]]]:
    return ((table, row) for rows in rounds for table, some in rows.items() for row in some)


def test_importing_the_list_imports_no_part() -> None:
    """The list is names: an agent without GPUs loads no pynvml, and one broken part breaks no other."""
    code = (
        "import sys, graynode.collectors\n"
        "print(sorted(m for m in sys.modules if m.startswith('graynode.')), "
        "sorted({'pynvml', 'numpy', 'pyarrow', 'msgspec'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "['graynode.collectors'] []"


def test_unknown_name_is_answered_with_the_known_ones() -> None:
    """A misspelt collector is an error that lists what there is."""
    with pytest.raises(KeyError, match="no collector 'nvmll'; there are nvml, kernel_log"):
        load("nvmll")


@pytest.mark.parametrize("name", NAMES)
def test_class_is_what_the_list_says(name: str) -> None:
    """The name in the list is the collector's own, and it announces tables that collectors may fill."""
    class_ = load(name)
    assert class_.name == name
    assert class_.tables
    assert all(TABLES[table].topic for table in class_.tables)
    assert class_.__doc__


@pytest.mark.parametrize("name", [n for n in NAMES if n != "simulated"])
def test_base_install_is_enough(name: str) -> None:
    """A collector of the agent needs none of the server's libraries."""
    heavy = ("numpy", "polars", "duckdb", "sklearn", "scipy", "deltalake", "kafka", "typer", "httpx")
    code = (
        f"import sys\nfor name in {heavy!r}: sys.modules[name] = None\n"
        f"from graynode.collectors import load\nload({name!r})\nprint('loaded')"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "loaded\n", done.stderr


@pytest.mark.parametrize("name", [n for n in NAMES if n != "simulated"])
def test_empty_machine_is_no_source_not_a_crash(name: str, tmp_path: Path) -> None:
    """Where nothing of its source exists, a collector says so by ``NoSource``, or has nothing but what it could not
    tell; either way it can be closed."""
    machine: Machine = node_files.node(tmp_path)
    options: dict[str, Any] = {"path": tmp_path / "none"} if name == "kernel_log" else {}
    if name == "nvml":
        options = {"env": {"LD_LIBRARY_PATH": str(tmp_path)}, "patience": nvml_rig.SOON}
    if name.startswith("kubernetes"):
        options = {"env": {}}
    if name == "slurm":
        options = {"etc": tmp_path / "etc"}
    if name == "slurm_cluster":
        options = {"env": {"PATH": str(tmp_path)}}
    if name == "steps":
        (tmp_path / "file").touch()
        options = {"settings": slurm_example.StepSettings(tmp_path / "file/steps.sock")}
    said = ""
    made: Collector | None = None
    try:
        made = load(name)(machine, **options)
        for n in range(100):
            rows = made.collect(Round(T0 + timedelta(seconds=n), ALL, 1.0))
            assert not rows.get("gpu")
            assert not rows.get("link")
        said = "nothing but what it could not tell"
    except NoSource as none:
        said = str(none)
    finally:
        if made is not None:
            made.close()
    assert said


def test_rows_fit_the_contract_to_the_type(collector: Collector) -> None:
    """Only tables announced, only fields known, each of its own Python type: an int is no float, a bool is no int,
    times are aware, and nothing is NaN."""
    rounds = _rounds(collector, 3)
    assert any(_each(rounds))
    for table, row in _each(rounds):
        assert table in collector.tables
        to_batch(TABLES[table], [row])
        for name, value in row.items():
            if value is not None:
                _check_type(TABLES[table].field(name), value)


def _check_type(field: Field, value: object) -> None:
    assert isinstance(value, PYTHON_TYPES[field.type]), f"{field.name} = {value!r}"
    assert field.type == "bool" or not isinstance(value, bool), f"{field.name} = {value!r}"
    if isinstance(value, float):
        assert math.isfinite(value), field.name
    if isinstance(value, datetime):
        assert value.utcoffset() == timedelta(0), field.name


def test_values_are_in_their_legal_range(collector: Collector) -> None:
    """What the device cannot mean does not leave the collector: no sentinel, no percentage of 9·10¹⁸."""
    for table, row in _each(_rounds(collector, 3)):
        for name, value in row.items():
            field = TABLES[table].field(name)
            if isinstance(value, int | float):
                assert field.lo is None or value >= field.lo, (name, value)
                assert field.hi is None or value <= field.hi, (name, value)


def test_slow_fields_come_in_their_rounds_only(collector: Collector) -> None:
    """A field of the 10 s or 60 s class is null in other rounds: what was not read is not repeated."""
    if collector.name in ("replay", "dcgm"):
        pytest.skip("gives what was recorded, or what a page holds at the page's own pace")
    for table, row in _each(_rounds(collector, 4, lambda n: frozenset({1}))[1:]):
        if table in SAMPLED:
            late = {n for n, v in row.items() if v is not None and TABLES[table].field(n).every_s != 1}
            assert late == set()


def test_rows_are_handed_over(collector: Collector) -> None:
    """The agent keeps and completes rows, so no round gives an object of the one before again."""
    rounds = _rounds(collector, 3)
    for rows in rounds:
        for some in rows.values():
            for row in some:
                row["cluster"] = "taken"
    seen = [id(row) for _, row in _each(rounds)]
    assert len(seen) == len(set(seen))
    fresh = collector.collect(Round(T0 + timedelta(seconds=400), ALL, 1.0))
    assert all(row.get("cluster") != "taken" for _, row in _each([fresh]))


def test_machines_other_than_this_one_say_who_they_are(collector: Collector) -> None:
    """Rows either leave the keys to the agent or name this machine; only the simulated fleet speaks for others, and
    then for each row, and a scheduler's collector, in the scheduler's words."""
    named = {row.get("node_id") for _, row in _each(_rounds(collector, 2))}
    if collector.name == "simulated":
        assert not named & {None, "machine-1"}
        assert len(named) >= 3
    elif collector.name == "kubernetes_cluster":
        assert named <= {None, "kubernetes", "kubernetes:host-1"}
    elif collector.name == "slurm_cluster":
        assert all(name.partition("/")[0] == "slurm:c1" for name in named if name is not None)
    else:
        assert named <= {None, "machine-1"}


def test_events_have_ids_and_no_two_the_same(collector: Collector) -> None:
    """An event without an id would be told twice after a restart."""
    events = [row for table, row in _each(_rounds(collector, 3)) if table == "event"]
    ids = [row["event_id"] for row in events]
    assert all(ids)
    assert len(ids) == len(set(ids))


def test_what_became_of_records_is_words_and_counts(collector: Collector) -> None:
    """A collector that counts its records does so in the form that the agent's ``/metrics`` read."""
    collector.collect(Round(T0, ALL))
    tally = getattr(collector, "tally", {})
    assert all(isinstance(became, str) and count >= 0 for became, count in tally.items())


def test_close_twice_is_as_good_as_once(collector: Collector) -> None:
    """Closing never fails, before the first round, after it, or again."""
    _rounds(collector, 1)
    collector.close()
    collector.close()


@pytest.mark.parametrize("name", NAMES)
def test_close_before_the_first_round(name: str, tmp_path: Path) -> None:
    """An agent that is stopped at once closes what it never used."""
    made = EXAMPLES[name](tmp_path)
    made.close()
    made.close()
