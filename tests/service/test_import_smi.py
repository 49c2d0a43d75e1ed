"""``graynode import --format nvidia-smi``: what real GPUs printed, every value stored or refused with its reason."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest
from kept_lake import KeptLake

from graynode.pipeline.lake import Lake
from graynode.pipeline.schema import TABLES
from graynode.service.config import Config, ConfigError, LakeSection
from graynode.service.import_smi import Asked, Outcome, import_file
from graynode.service.import_smi_csv import canonical, names_of
from graynode.service.import_smi_fields import entries
from graynode.service.import_smi_unused import unused
from graynode.service.importing import run

FIXTURES = Path(__file__).parents[1] / "fixtures"
XML = sorted((FIXTURES / "telegraf_smi").glob("*.xml"))
REPORTS = sorted((FIXTURES / "nvidia_smi").glob("*.txt.gz"))
NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


def _import(path: Path, asked: Asked | None = None, lake: Lake | None = None, **kw: int) -> tuple[Outcome, Lake]:
    lake = lake or KeptLake()
    return import_file(lake, "c", path, asked or Asked(node="n1"), now=NOW, **kw), lake


def _write(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "smi.txt"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def _text(path: Path) -> str:
    return gzip.decompress(path.read_bytes()).decode()


def _values_of_report(text: str) -> int:
    """Counted another way: values of ``-q``, cells of tables, other lines that are neither empty nor titles."""
    count, in_log, columns = 0, False, 0
    for line in text.splitlines():
        bare = line.strip()
        if line.startswith("####") or "NVSMI LOG" in line:
            in_log, columns = "NVSMI LOG" in line, 0
        elif not bare or re.match(r"^# \S+ :: ", line):
            continue
        elif in_log:
            count += " : " in line or line.rstrip().endswith(" :")
        elif bare.startswith(("timestamp, ", "uuid, ")) and not columns:
            columns = len(bare.split(", "))
        elif columns:
            count += len(line.split(", "))
        else:
            count += 1
    return count


# --- nothing is dropped silently ------------------------------------------------------------------------------


@pytest.mark.parametrize("path", XML, ids=lambda path: path.stem)
def test_every_value_of_an_xml_capture_has_one_end(path: Path) -> None:
    """Values read are the document's leaves; stored and refused add up to them, and no name is new."""
    done, lake = _import(path)
    leaves = sum(1 for element in ET.parse(path).getroot().iter() if len(element) == 0)  # noqa: S314 (our own fixture)
    assert done.ledger.read == leaves
    assert done.ledger.stored.total() + done.ledger.refused.total() == leaves
    assert not done.ledger.new_names
    _rows_hold_what_was_stored(done, lake)


@pytest.mark.parametrize("path", [*REPORTS, FIXTURES / "nvidia_smi" / "query.txt"], ids=lambda path: path.name[:60])
def test_every_value_of_a_report_has_one_end(path: Path) -> None:
    """The same for ``-q`` and CSV in one file: values, cells and lines that are of neither form."""
    done, lake = _import(path)
    text = _text(path) if path.suffix == ".gz" else path.read_text()
    assert done.ledger.read == _values_of_report(text)
    assert not done.ledger.new_names
    _rows_hold_what_was_stored(done, lake)


def _rows_hold_what_was_stored(done: Outcome, lake: Lake) -> None:
    """As many rows as the account says, a cell or more for what was stored, and all of it inside the contract."""
    gpu, quality = lake.read("gpu"), lake.read("quality")
    assert gpu.height == done.landed["gpu"].stored > 0
    assert gpu.null_count().sum_horizontal().sum() < gpu.height * gpu.width
    assert done.ledger.stored["quality"] == 0 or quality.height == done.landed["quality"].stored > 0
    told = {(row["entity"].partition("/")[0], row["field"]) for row in quality.iter_rows(named=True)}
    measured = [f.name for f in TABLES["gpu"].fields if f.kind != "key"]
    for row in gpu.filter(pl.col("mig_instance").is_null()).iter_rows(named=True):
        first = row["ts"] == gpu["ts"].min()
        assert not first or not [n for n in measured if row[n] is not None and (row["gpu_uuid"], n) in told]
    for f in TABLES["gpu"].fields:
        if f.lo is not None:
            assert not (gpu[f.name] < f.lo).any()
        if f.hi is not None:
            assert not (gpu[f.name] > f.hi).any()


def test_every_name_that_nvidia_smi_offers_is_known() -> None:
    """What ``--help-query-gpu`` of every captured driver lists is stored, or known not to be."""
    offered: set[str] = set()
    for path in REPORTS:
        section = _text(path).partition("help-query-gpu\n")[2].partition(":: help-query-compute-apps")[0]
        for line in section.splitlines():
            if line.startswith('"'):
                offered |= set(re.findall(r'"([a-zA-Z0-9_.]+)"', line))
    assert len(offered) > 150
    known = entries("csv")
    assert [n for n in sorted(offered) if canonical(n) not in known and unused("csv", canonical(n)) is None] == []


# --- what values become -----------------------------------------------------------------------------------------


def test_an_a100_with_mig() -> None:
    """XML v12: units converted, event reasons as bits, instances under their parent, N/A in ``quality`` with why."""
    done, lake = _import(FIXTURES / "telegraf_smi" / "a100-sxm4-v12.xml", Asked(zone="Europe/Berlin"))
    gpu = lake.read("gpu")
    parent = gpu.filter(pl.col("mig_instance").is_null()).row(0, named=True)
    expected = {
        "ts": datetime(2023, 8, 4, 9, 44, 30, tzinfo=UTC), "gpu_uuid": "GPU-513536b6-7d19-9063-b049-1e69664bb298",
        "gpu_model": "NVIDIA A100-SXM4-80GB", "pci_bus_id": "0000:01:00.0", "vendor": "NVIDIA", "node": None,
        "power_limit_w": 500.0, "temp_c": 27, "mem_temp_c": 44, "temp_shutdown_c": 92, "temp_slowdown_c": 89,
        "temp_max_op_c": 85, "temp_mem_max_op_c": 95, "sm_clock_mhz": 1275, "mem_clock_mhz": 1593, "pstate": 0,
        "mem_total_bytes": 81920 << 20, "mem_used_bytes": 50 << 20, "pcie_gen": 4, "pcie_width": 16, "ecc_mode": 1,
        "ecc_sbe_volatile_device": 0, "ecc_dbe_aggregate_sram": 0, "ecc_sbe_volatile": None, "mig_mode": 1,
        "persistence_mode": 0, "processes": 0, "clock_event_reasons": 0, "gpu_util_percent": None, "pcie_replays": 0,
        "row_remap_failed": None, "pcie_tx_kb_per_s": 4000,
    }  # fmt: skip
    assert {name: parent[name] for name in expected} == expected
    assert parent["power_w"] == pytest.approx(67.03)
    parts = gpu.filter(pl.col("mig_instance").is_not_null()).sort("mig_instance")
    assert parts["mig_instance"].to_list() == ["3", "4", "5", "6"]
    assert parts["mem_total_bytes"].unique().to_list() == [19968 << 20]
    assert parts["ecc_dbe_volatile_sram"].to_list() == [0, 0, 0, 0]
    assert parts["power_w"].null_count() == 4
    inventory = lake.read("inventory").row(0, named=True)
    assert (inventory["serial"], inventory["vbios_version"]) == ("1650522003820", "92.00.36.00.02")
    assert (inventory["driver_version"], inventory["slot"]) == ("535.54.03", "0000:01:00.0")
    attributes = json.loads(inventory["attributes"])
    assert (attributes["ts_quality"], len(attributes["mig_instances"])) == ("approximate", 4)
    states = {(r["field"]): (r["state"], r["reason"]) for r in lake.read("quality").iter_rows(named=True)}
    assert states["gpu_util_percent"] == states["row_remap_failed"] == ("unsupported", "nvidia-smi: N/A")
    assert "it names no host" in " ".join(done.ledger.notes)


def test_an_h100_under_load() -> None:
    """``-q`` text and CSV of one GPU agree; sums of parts, histogram, counters in ns, fabric words and processes."""
    _, lake = _import(FIXTURES / "nvidia_smi" / "linux-x86_64__nvidia-h100-80gb-hbm3__590.48.01.txt.gz")
    gpu = lake.read("gpu").sort("ts")
    assert gpu.height == 4
    query, text = gpu.row(3, named=True), gpu.row(2, named=True)
    steady = ("mem_total", "ecc", "bank", "row", "max", "power_limit", "fabric", "pcie_w")
    both = [n for n in gpu.columns if n.startswith(steady) and query[n] is not None and text[n] is not None]
    assert len(both) > 20
    assert [n for n in both if query[n] != text[n]] == []
    assert (text["bank_remap_max"], text["bank_remap_none"], text["row_remap_pending"]) == (2560, 0, 0)
    assert (text["fabric_state"], text["fabric_status"], text["recovery_action"]) == (3, 0, 0)
    assert (text["ecc_dbe_volatile_sram"], query["ecc_dbe_volatile"], text["ecc_dbe_volatile"]) == (0, 0, None)
    assert text["processes"] == 3
    assert text["temp_margin_c"] == query["temp_margin_c"] > 0
    assert text["power_w"] > 400
    rtx = FIXTURES / "nvidia_smi" / "linux-x86_64__nvidia-geforce-rtx-2080-super__595.71.05.txt.gz"
    _, lake = _import(rtx)
    rows = lake.read("gpu").sort("ts")
    assert rows["throttle_sw_power_cap_ns"].to_list()[:2] == [212288427000, 212553937000]
    assert rows["clock_event_reasons"].to_list()[1] == 0x4


def test_old_and_new_spellings_of_one_thing() -> None:
    """Throttle reasons of 2019 and event reasons of 2026 are the same bits; power has three names and one column."""
    for name, bits in (("a10g", 0x1), ("rtx-3080-v13", 0)):
        _, lake = _import(FIXTURES / "telegraf_smi" / f"{name}.xml")
        row = lake.read("gpu").row(0, named=True)
        assert row["clock_event_reasons"] == bits
        assert row["power_w"] > 0
    assert row["power_instant_w"] == pytest.approx(142.33)
    assert row["power_w"] == pytest.approx(139.62)


HEAD = "timestamp, index, uuid, power.draw [W], temperature.gpu, utilization.gpu [%], clocks_throttle_reasons.active\n"


def _row(second: int, power: str, *rest: str, gpu: int = 0) -> str:
    cells = [f"2026/07/14 09:00:{second:02d}.500", str(gpu), f"GPU-{gpu}", power, *rest]
    return ", ".join([*cells, "40", "7 %", "0x0000000000000001"][: 7 - 0]) + "\n"


ABSENT = {
    "[N/A]": "unsupported", "N/A": "unsupported", "[Not Supported]": "unsupported", "ERR!": "error",
    "[Requested functionality has been deprecated]": "unsupported", "[Insufficient Permissions]": "not_permitted",
    "[Unknown Error]": "error", "[GPU is lost]": "lost", "[GPU requires reset]": "error", "[Something new]": "error",
    "99999.00 W": "implausible",
}  # fmt: skip


def test_what_stands_in_place_of_a_value(tmp_path: Path) -> None:
    """Each is null in ``gpu`` and one change in ``quality``; the value's return is another. Nothing else suffers."""
    cells = [["70.5 W"] * len(ABSENT), list(ABSENT), list(ABSENT), ["71.5"] * len(ABSENT)]
    rows = [_row(second, text, gpu=gpu) for second, row in enumerate(cells) for gpu, text in enumerate(row)]
    done, lake = _import(_write(tmp_path, HEAD + "".join(rows)))
    for number, (text, state) in enumerate(ABSENT.items()):
        gpu = lake.read("gpu").filter(pl.col("gpu_uuid") == f"GPU-{number}").sort("ts")
        assert gpu["power_w"].to_list() == [70.5, None, None, 71.5]
        assert gpu["temp_c"].to_list() == [40] * 4
        changes = lake.read("quality").filter(pl.col("entity") == f"GPU-{number}").sort("ts")
        assert changes.select("field", "state").rows() == [("power_w", state), ("power_w", "measured")]
        assert state == "implausible" or changes["reason"][0] == f"nvidia-smi: {text}"
    assert done.ledger.read == 4 * 7 * len(ABSENT)
    assert done.ledger.stored["quality"] == 2 * len(ABSENT)


def test_csv_with_and_without_units_and_header(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Units in cells, in the header only, or nowhere: the same rows. Without a header the query must be said."""
    rows = [HEAD + _row(1, "70.5 W"), HEAD + _row(1, "70.5").replace(" %", ""), _row(1, "70.5").replace(" %", "")]
    query = "timestamp,index,uuid,power.draw,temperature.gpu,utilization.gpu,clocks_event_reasons.active"
    found = []
    for number, text in enumerate(rows):
        _, lake = _import(_make(tmp_path / str(number), text), Asked(node="n", query=query))
        row = lake.read("gpu").row(0, named=True)
        assert (row["power_w"], row["gpu_util_percent"], row["gpu_index"], row["clock_event_reasons"]) == (
            70.5,
            7,
            0,
            1,
        )
        found.append(row)
    assert found[0] == found[1] == found[2]
    assert run(Config(lake=LakeSection(path=str(tmp_path / "no"))), "nvidia-smi", _write(tmp_path, rows[2])) == 1
    assert "CSV without a header needs --query" in capsys.readouterr().out


def _make(folder: Path, text: str) -> Path:
    folder.mkdir()
    return _write(folder, text)


def test_a_query_without_uuid_says_what_to_add(tmp_path: Path) -> None:
    """An index moves between boots: rows without a UUID are refused whole, with the way out."""
    path = _write(tmp_path, "timestamp, index, temperature.gpu\n2026/07/14 09:00:01.5, 0, 40\n")
    done, lake = _import(path)
    assert done.ledger.stored.total() == 0
    assert {reason: n for reason, n in done.ledger.refused.items() if "add uuid to --query-gpu" in reason}
    assert not lake.exists("gpu")


def test_time_from_text_from_the_person_or_from_the_file(tmp_path: Path) -> None:
    """Local time takes ``--zone``; a capture without time takes ``--at``, else the file's; each says how good it is."""
    xml = (FIXTURES / "telegraf_smi" / "gtx-1070-ti.xml").read_text()
    path = _write(tmp_path, xml)
    _, lake = _import(path, Asked(at="2024-01-02T03:04:05+01:00"))
    assert lake.read("gpu")["ts"].to_list() == [datetime(2024, 1, 2, 2, 4, 5, tzinfo=UTC)]
    assert json.loads(lake.read("inventory")["attributes"][0])["ts_quality"] == "observed"
    _, lake = _import(path)
    assert lake.read("gpu")["ts"][0].timestamp() == pytest.approx(path.stat().st_mtime, abs=1e-3)
    wrong = {
        "--zone Mars/Base": Asked(zone="Mars/Base"),
        "--at noon": Asked(at="noon"),
        "has no zone": Asked(at="2024-01-02"),
    }
    for said, asked in wrong.items():
        with pytest.raises(ConfigError, match=said):
            _import(path, asked)


def test_a_log_of_weeks_is_one_row_a_change(tmp_path: Path) -> None:
    """Concatenated XML documents and CSV rows in pieces: inventory and quality say each thing once; windows follow."""
    xml = (FIXTURES / "telegraf_smi" / "tesla-t4.xml").read_text()
    stamp = re.search(r"<timestamp>(.*?)</timestamp>", xml)
    assert stamp is not None
    docs = [xml.replace(stamp[1], f"Tue Jul 14 {9 + i // 12:02d}:{i % 12 * 5:02d}:00 2026") for i in range(30)]
    path = _write(tmp_path, "".join(docs))
    config = Config(cluster="c", lake=LakeSection(path=str(tmp_path / "lake")))
    assert run(config, "nvidia-smi", path, asked=Asked(node="n1"), now=NOW) == 0
    lake = Lake(str(tmp_path / "lake"))
    assert [lake.read(t).height for t in ("gpu", "inventory", "gpu_30s", "gpu_1h")] == [30, 1, 0, 3]
    assert lake.read("quality").height == lake.read("quality").select("field").n_unique()
    hours = lake.read("gpu_1h").sort("ts")
    assert hours.select("samples", "samples_expected").rows() == [(12, 12), (12, 12), (6, 12)]
    assert hours["gpu_idle_s"][0] in (0.0, 3600.0)


def test_what_follows_a_log_is_not_lost(tmp_path: Path) -> None:
    """Lines after ``-q`` that are none of it are counted, a table among them is read, and a GPU that is lost is named
    in the account even where nvidia-smi has only a sentence for it."""
    log = _text(REPORTS[3]).partition("==============NVSMI LOG==============")[2].partition("####")[0]
    lost = "Unable to determine the device handle for GPU0: 0000:09:00.0: GPU is lost.  Reboot the system"
    text = f"==============NVSMI LOG=============={log}\nuser@host$ uptime\n{lost}\n{HEAD}{_row(1, '70 W')}"
    done, lake = _import(_write(tmp_path, text))
    assert done.ledger.captures == {"text, -q": 1, "csv, --query-gpu": 1}
    assert done.ledger.sections == {"no title": 2}
    assert done.ledger.refused["a line that says that a GPU is lost, without its UUID"] == 1
    assert lake.read("gpu").height == 2


def test_the_machine_that_an_agent_knows(tmp_path: Path) -> None:
    """``--node-id`` puts a capture on the machine that an agent reports; a host name alone makes an id of its own."""
    path = FIXTURES / "telegraf_smi" / "tesla-t4.xml"
    ids = []
    for asked in (Asked(node="a"), Asked(node="b"), Asked(node="a", node_id="smbios-1")):
        _, lake = _import(path, asked)
        ids.append(lake.read("gpu").select("node", "node_id").row(0))
    assert ids[2] == ("a", "smbios-1")
    assert len({node_id for _, node_id in ids}) == 3


def test_the_command(tmp_path: Path) -> None:
    """From the shell: files, options, the account on stdout, and a wrong option in one line."""
    command = [sys.executable, "-m", "graynode.service.cli", "import", "--format", "nvidia-smi", "--node", "a"]
    command += ["--lake", str(tmp_path / "lake"), "--step", "3600", "--zone", "Europe/Berlin"]
    files = [str(XML[0]), str(FIXTURES / "telegraf_smi" / "tesla-t4.xml")]
    done = subprocess.run([*command, *files], capture_output=True, text=True, timeout=60, check=True, cwd=tmp_path)
    assert "306 values read" in done.stdout
    assert "6 of gpu_1h stored" in done.stdout
    wrong = subprocess.run([*command, "--at", "x", *files], capture_output=True, text=True, timeout=60, check=False)
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("graynode: --at x: not an ISO 8601 time")
    assert "Traceback" not in wrong.stderr


def test_utf16_of_powershell(tmp_path: Path) -> None:
    """What a redirection on Windows wrote is the same capture."""
    xml = (FIXTURES / "telegraf_smi" / "rtx-3060-v12.xml").read_text()
    done, _ = _import(_write(tmp_path, xml.encode("utf-16")))
    assert done.ledger.stored["gpu"] == 46


# --- once ---------------------------------------------------------------------------------------------------------


def test_twice_is_as_good_as_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second import of a file, packed or not, stores nothing and makes no commit."""
    config = Config(cluster="c", lake=LakeSection(path=str(tmp_path / "lake")))
    lake = Lake(str(tmp_path / "lake"))
    packed = REPORTS[0]
    plain = _write(tmp_path, _text(packed))
    for path in (packed, packed, plain):
        assert run(config, "nvidia-smi", [path], asked=Asked(node="n1"), now=NOW) == 0
    versions = {t: lake.version(t) for t in ("gpu", "inventory", "quality")}
    assert set(versions.values()) == {1}
    assert "gpu 0 (4 were there already)" in capsys.readouterr().out


def test_a_log_that_has_grown_adds_its_new_rows(tmp_path: Path) -> None:
    """A log that is still being written is imported again and again: only what is new is stored, a half line never."""
    rows = [_row(s, f"{s} W", gpu=g) for s in range(12) for g in range(2)]
    lake, stored = KeptLake(), []
    for end in (5, 12, 24):
        text = HEAD + "".join(rows[:end]) + ("" if end == 24 else rows[end][:30])
        done, _ = _import(_write(tmp_path, text), lake=lake)
        stored.append(done.landed["gpu"].stored)
    assert stored == [5, 7, 12]
    assert lake.read("gpu").select("gpu_uuid", "ts").is_unique().all()
    assert lake.read("inventory").height == 2


class _Dies(Lake):
    """A lake whose process ends at its n-th write."""

    left = 0

    def write(self, *args: object, **kw: object) -> int:
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1
        return super().write(*args, **kw)  # type: ignore[arg-type]


@pytest.mark.parametrize("writes", [0, 1, 2, 4])
def test_a_kill_leaves_whole_pieces(tmp_path: Path, writes: int) -> None:
    """Killed at any write, a second run brings what is missing and doubles nothing."""
    text = HEAD + "".join(_row(s, "[N/A]" if s % 2 else f"{s} W", gpu=g) for s in range(20) for g in range(3))
    path = _write(tmp_path, text)
    dying = _Dies(str(tmp_path / "lake"))
    dying.left = writes
    with pytest.raises(KeyboardInterrupt):
        import_file(dying, "c", path, Asked(node="n1"), now=NOW, piece_rows=30)
    _, lake = _import(path, lake=Lake(str(tmp_path / "lake")), piece_rows=30)
    whole, full = _import(path, piece_rows=30)
    assert whole.landed["gpu"].stored == 60
    for table in ("gpu", "inventory", "quality"):
        order = [*TABLES[table].entity, "ts"]
        assert lake.read(table).sort(order).equals(full.read(table).sort(order))


# --- bad input ------------------------------------------------------------------------------------------------------


def _rcs(tmp_path: Path, files: list[Path]) -> Iterator[int]:
    for path in files:
        yield run(Config(lake=LakeSection(path=str(tmp_path / "lake"))), "nvidia-smi", [path], now=NOW)


@pytest.mark.parametrize(
    ("name", "said"),
    [("mi100_rocm571.json", "rocm-smi"), ("rx6700xt_rocm612.json", "--format csv --map"),
     ("vega-20-WKS-GL-XE.json", "AMD")],
)  # fmt: skip
def test_rocm_smi_is_refused_with_what_to_do(tmp_path: Path, name: str, said: str) -> None:
    """AMD's JSON is named as such, with the way that is open to it."""
    with pytest.raises(ConfigError, match=said):
        list(_rcs(tmp_path, [FIXTURES / "telegraf_smi" / name]))


def test_what_is_no_capture_is_said(tmp_path: Path) -> None:
    """An exporter's page, Parquet, an empty file, an absent one, a folder: each with what it is or what to do."""
    page = FIXTURES / "nvidia_smi" / "h100-load.metrics.gz"
    cases = {page: "--format prometheus", tmp_path / "no": "cannot be read", tmp_path: "cannot be read"}
    for path, said in {**cases, _write(tmp_path, b"PAR1xx"): "--format parquet"}.items():
        with pytest.raises(ConfigError, match=said):
            list(_rcs(tmp_path, [path]))
    for data in (b"", b"\n \n"):
        with pytest.raises(ConfigError, match="is empty"):
            list(_rcs(tmp_path, [_write(tmp_path, data)]))
    assert not (tmp_path / "lake").exists()


def test_one_bad_file_of_several_costs_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The others are imported, the bad one is said on stderr, and the exit code tells."""
    config = Config(lake=LakeSection(path=str(tmp_path / "lake")))
    assert run(config, "nvidia-smi", [XML[0], tmp_path / "no", XML[1]], now=NOW) == 2
    assert str(tmp_path / "no") in capsys.readouterr().err
    assert Lake(str(tmp_path / "lake")).read("gpu")["gpu_uuid"].n_unique() == 2


def test_without_permission(tmp_path: Path) -> None:
    """A file that may not be read is said with its path, as a user other than root meets it."""
    path, me = _write(tmp_path, HEAD + _row(1, "70 W")), os.geteuid()
    path.chmod(0)
    if me == 0:
        os.seteuid(65534)
    try:
        with pytest.raises(ConfigError, match=rf"{path}: cannot be read: Permission denied"):
            _import(path, Asked(at="2026-01-01T00:00Z"))
    finally:
        os.seteuid(me)


@pytest.mark.parametrize("path", [XML[0], REPORTS[3]], ids=lambda path: path.name[:30])
@pytest.mark.parametrize("share", [0.02, 0.55, 0.9, 0.999])
def test_cut_in_the_middle(tmp_path: Path, path: Path, share: float) -> None:
    """Whatever is left of a capture is read; what is not whole is counted, and nothing that is stored is half."""
    whole = _text(path) if path.suffix == ".gz" else path.read_text()
    text = whole[: int(len(whole) * share)]
    done, lake = _import(_write(tmp_path, text))
    full, other = _import(path)
    assert done.ledger.read <= full.ledger.read
    if path.suffix == ".xml":
        assert not lake.exists("gpu")  # its one GPU is not whole
        assert done.ledger.notes or "not whole" in " ".join(done.ledger.refused)
    elif lake.exists("gpu"):
        numbers = [f.name for f in TABLES["gpu"].fields if f.type != "string" and f.kind != "key"]
        theirs = other.read("gpu").rows_by_key(["ts", "mig_instance"], named=True, unique=True)
        for row in lake.read("gpu").iter_rows(named=True):
            assert not [n for n in numbers if row[n] not in (None, theirs[row["ts"], row["mig_instance"]][n])]


BOMB = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log [ <!ENTITY a "aaaaaaaaaaaaaaaaaaaa"> <!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">
<!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;"> <!ENTITY d "&c;&c;&c;&c;&c;&c;&c;&c;&c;&c;"> ]>
<nvidia_smi_log><gpu id="0"><uuid>GPU-1</uuid><product_name>&d;</product_name></gpu></nvidia_smi_log>
"""
FETCH = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log [ <!ENTITY a SYSTEM "file:///etc/passwd"> ]>
<nvidia_smi_log><gpu id="0"><uuid>GPU-1</uuid><product_name>&a;</product_name></gpu></nvidia_smi_log>
"""
HEAD_XML = '<?xml version="1.0" ?>\n<nvidia_smi_log>\n<gpu id="0">\n<uuid>GPU-1</uuid>\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [(BOMB, "declares an entity"), (FETCH, "declares an entity"),
     (HEAD_XML + "<a>" * 100_000, "deeper than"), (HEAD_XML + "<b>" + "x" * 200_000, "a value longer"),
     (HEAD_XML + "<c " + "x" * (6 << 20), "without a tag"), (HEAD_XML + "<d>\x01</d>", "not XML"),
     (HEAD_XML + "<e>&nope;</e>", "not XML|uses an entity"), (HEAD_XML + "</gpu></oops>", "not XML"),
     ("<?xml version='1.0'?>\n<rss><a/></rss>\n", "its root is"), (HEAD_XML * 2, "not XML|cut")],
    ids=["bomb", "fetch", "deep", "long value", "long tag", "control", "entity", "crossed", "other root", "again"],
)  # fmt: skip
def test_hostile_xml(tmp_path: Path, text: str, said: str) -> None:
    """Entities, depth, endless values and tags, and broken XML: counted with the reason, nothing expanded or stored,
    and the documents after it are read."""
    good = (FIXTURES / "telegraf_smi" / "rtx-3060-v12.xml").read_text()
    done, lake = _import(_write(tmp_path, text + "\n</nvidia_smi_log>\n" + good))
    account = " ".join([*done.ledger.notes, *done.ledger.refused])
    assert re.search(said, account)
    gpu = lake.read("gpu")
    assert "GPU-1" not in gpu["gpu_uuid"].to_list() or said == "not XML"
    assert gpu.filter(pl.col("gpu_model").str.contains("3060|Graphics|RTX")).height == 1


def test_a_line_of_a_hundred_megabytes(tmp_path: Path) -> None:
    """It is refused once, without being held; what stands before and after it is read."""
    path = tmp_path / "long.csv"
    with path.open("w") as file:
        file.write(HEAD + _row(1, "70 W"))
        for _ in range(100):
            file.write("x" * 1_000_000)
        file.write("\n" + _row(2, "71 W"))
    done, lake = _import(path)
    assert lake.read("gpu").sort("ts")["power_w"].to_list() == [70.0, 71.0]
    assert done.ledger.refused["a line longer than 1 million characters"] == 1


def test_a_newer_nvidia_smi(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Elements, lines and columns that nobody knows yet are counted and named; all else is stored as before."""
    xml = (FIXTURES / "telegraf_smi" / "tesla-t4.xml").read_text().replace("v11.dtd", "v19.dtd")
    xml = xml.replace("<pci>", "<quantum_state><spin>up</spin><flavour>odd</flavour></quantum_state>\n<pci>")
    run(Config(lake=LakeSection(path=str(tmp_path / "lake"))), "nvidia-smi", _write(tmp_path, xml), now=NOW)
    said = capsys.readouterr().out
    assert "schema v19" in said
    assert "2 refused: a name that this version does not know" in " ".join(said.split())
    assert "new names: quantum_state/spin, quantum_state/flavour" in said
    assert "60 in rows of gpu" in " ".join(said.split())
    text = _text(REPORTS[3]).replace(
        "    Fan Speed ", "    Mood                                               : good\n    Fan Speed "
    )
    done, _ = _import(_make(tmp_path / "q", text))
    assert dict(done.ledger.new_names) == {"mood": 2}
    done, lake = _import(_write(tmp_path, HEAD.replace("temperature.gpu", "temperament.gpu") + _row(1, "1 W")))
    assert dict(done.ledger.new_names) == {"temperament.gpu": 1}
    assert lake.read("gpu")["power_w"].to_list() == [1.0]


def test_names_move_no_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a file calls things is stored and shown as text."""
    head = HEAD.replace("index", "name").replace("temperature.gpu", "a.\x1b.b")
    assert names_of(head) is None  # no name has such a character
    rows = "timestamp, name, uuid, temperature.gpu\n2026/07/14 09:00:01.5, A\x1b[2JB, GPU-1, 40\n"
    run(Config(lake=LakeSection(path=str(tmp_path / "lake"))), "nvidia-smi", _write(tmp_path, rows), now=NOW)
    assert Lake(str(tmp_path / "lake")).read("gpu")["gpu_model"].to_list() == ["A�[2JB"]
    assert not [c for c in capsys.readouterr().out if not c.isprintable() and c != "\n"]


@pytest.mark.parametrize("text", ["2026/13/45 09:00:00.0", "1970/01/01 00:00:00.0", "2126/01/01 00:00:00.0", "soon"])
def test_a_time_that_cannot_be(tmp_path: Path, text: str) -> None:
    """The row is refused, counted, and costs no other."""
    bad = _row(1, "1 W").replace("2026/07/14 09:00:01.500", text)
    done, lake = _import(_write(tmp_path, HEAD + bad + _row(2, "2 W", gpu=1)))
    assert done.ledger.refused["its capture's time cannot be read"] == 7
    assert lake.read("gpu")["power_w"].to_list() == [2.0]
