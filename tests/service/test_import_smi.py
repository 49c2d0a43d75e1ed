"""``graynode import --format nvidia-smi``: what real GPUs printed, every value stored or refused with its reason."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest
from smi_files import FIXTURES, HEAD, NOW, REPORTS, XML, csv_row, import_smi, make, unpacked, write

from graynode.pipeline.lake import Lake
from graynode.pipeline.schema import TABLES
from graynode.service.config import Config, ConfigError
from graynode.service.config_tables import LakeSection
from graynode.service.importing import run
from graynode.service.imports.smi import Asked, Outcome
from graynode.service.imports.smi_csv import canonical
from graynode.service.imports.smi_fields import entries
from graynode.service.imports.smi_unused import unused


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
    done, lake = import_smi(path)
    leaves = sum(1 for element in ET.parse(path).getroot().iter() if len(element) == 0)  # noqa: S314 (our own fixture)
    assert done.ledger.read == leaves
    assert done.ledger.stored.total() + done.ledger.refused.total() == leaves
    assert not done.ledger.new_names
    _rows_hold_what_was_stored(done, lake)


@pytest.mark.parametrize("path", [*REPORTS, FIXTURES / "nvidia_smi" / "query.txt"], ids=lambda path: path.name[:60])
def test_every_value_of_a_report_has_one_end(path: Path) -> None:
    """The same for ``-q`` and CSV in one file: values, cells and lines that are of neither form."""
    done, lake = import_smi(path)
    text = unpacked(path) if path.suffix == ".gz" else path.read_text()
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
        section = unpacked(path).partition("help-query-gpu\n")[2].partition(":: help-query-compute-apps")[0]
        for line in section.splitlines():
            if line.startswith('"'):
                offered |= set(re.findall(r'"([a-zA-Z0-9_.]+)"', line))
    assert len(offered) > 150
    known = entries("csv")
    assert [n for n in sorted(offered) if canonical(n) not in known and unused("csv", canonical(n)) is None] == []


# --- what values become -----------------------------------------------------------------------------------------


def test_an_a100_with_mig() -> None:
    """XML v12: units converted, event reasons as bits, instances under their parent, N/A in ``quality`` with why."""
    done, lake = import_smi(FIXTURES / "telegraf_smi" / "a100-sxm4-v12.xml", Asked(zone="Europe/Berlin"))
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
    _, lake = import_smi(FIXTURES / "nvidia_smi" / "linux-x86_64__nvidia-h100-80gb-hbm3__590.48.01.txt.gz")
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
    _, lake = import_smi(rtx)
    rows = lake.read("gpu").sort("ts")
    assert rows["throttle_sw_power_cap_ns"].to_list()[:2] == [212288427000, 212553937000]
    assert rows["clock_event_reasons"].to_list()[1] == 0x4


def test_old_and_new_spellings_of_one_thing() -> None:
    """Throttle reasons of 2019 and event reasons of 2026 are the same bits; power has three names and one column."""
    for name, bits in (("a10g", 0x1), ("rtx-3080-v13", 0)):
        _, lake = import_smi(FIXTURES / "telegraf_smi" / f"{name}.xml")
        row = lake.read("gpu").row(0, named=True)
        assert row["clock_event_reasons"] == bits
        assert row["power_w"] > 0
    assert row["power_instant_w"] == pytest.approx(142.33)
    assert row["power_w"] == pytest.approx(139.62)


ABSENT = {
    "[N/A]": "unsupported", "N/A": "unsupported", "[Not Supported]": "unsupported", "ERR!": "error",
    "[Requested functionality has been deprecated]": "unsupported", "[Insufficient Permissions]": "not_permitted",
    "[Unknown Error]": "error", "[GPU is lost]": "lost", "[GPU requires reset]": "error", "[Something new]": "error",
    "99999.00 W": "implausible",
}  # fmt: skip


def test_what_stands_in_place_of_a_value(tmp_path: Path) -> None:
    """Each is null in ``gpu`` and one change in ``quality``; the value's return is another. Nothing else suffers."""
    cells = [["70.5 W"] * len(ABSENT), list(ABSENT), list(ABSENT), ["71.5"] * len(ABSENT)]
    rows = [csv_row(second, text, gpu=gpu) for second, row in enumerate(cells) for gpu, text in enumerate(row)]
    done, lake = import_smi(write(tmp_path, HEAD + "".join(rows)))
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
    rows = [
        HEAD + csv_row(1, "70.5 W"),
        HEAD + csv_row(1, "70.5").replace(" %", ""),
        csv_row(1, "70.5").replace(" %", ""),
    ]
    query = "timestamp,index,uuid,power.draw,temperature.gpu,utilization.gpu,clocks_event_reasons.active"
    found = []
    for number, text in enumerate(rows):
        _, lake = import_smi(make(tmp_path / str(number), text), Asked(node="n", query=query))
        row = lake.read("gpu").row(0, named=True)
        assert (row["power_w"], row["gpu_util_percent"], row["gpu_index"], row["clock_event_reasons"]) == (
            70.5,
            7,
            0,
            1,
        )
        found.append(row)
    assert found[0] == found[1] == found[2]
    assert run(Config(lake=LakeSection(path=str(tmp_path / "no"))), "nvidia-smi", write(tmp_path, rows[2])) == 1
    assert "CSV without a header needs --query" in capsys.readouterr().out


def test_a_query_without_uuid_says_what_to_add(tmp_path: Path) -> None:
    """An index moves between boots: rows without a UUID are refused whole, with the way out."""
    path = write(tmp_path, "timestamp, index, temperature.gpu\n2026/07/14 09:00:01.5, 0, 40\n")
    done, lake = import_smi(path)
    assert done.ledger.stored.total() == 0
    assert {reason: n for reason, n in done.ledger.refused.items() if "add uuid to --query-gpu" in reason}
    assert not lake.exists("gpu")


def test_time_from_text_from_the_person_or_from_the_file(tmp_path: Path) -> None:
    """Local time takes ``--zone``; a capture without time takes ``--at``, else the file's; each says how good it is."""
    xml = (FIXTURES / "telegraf_smi" / "gtx-1070-ti.xml").read_text()
    path = write(tmp_path, xml)
    _, lake = import_smi(path, Asked(at="2024-01-02T03:04:05+01:00"))
    assert lake.read("gpu")["ts"].to_list() == [datetime(2024, 1, 2, 2, 4, 5, tzinfo=UTC)]
    assert json.loads(lake.read("inventory")["attributes"][0])["ts_quality"] == "observed"
    _, lake = import_smi(path)
    assert lake.read("gpu")["ts"][0].timestamp() == pytest.approx(path.stat().st_mtime, abs=1e-3)
    wrong = {
        "--zone Mars/Base": Asked(zone="Mars/Base"),
        "--at noon": Asked(at="noon"),
        "has no zone": Asked(at="2024-01-02"),
    }
    for said, asked in wrong.items():
        with pytest.raises(ConfigError, match=said):
            import_smi(path, asked)


def test_a_log_of_weeks_is_one_row_a_change(tmp_path: Path) -> None:
    """Concatenated XML documents and CSV rows in pieces: inventory and quality say each thing once; windows follow."""
    xml = (FIXTURES / "telegraf_smi" / "tesla-t4.xml").read_text()
    stamp = re.search(r"<timestamp>(.*?)</timestamp>", xml)
    assert stamp is not None
    docs = [xml.replace(stamp[1], f"Tue Jul 14 {9 + i // 12:02d}:{i % 12 * 5:02d}:00 2026") for i in range(30)]
    path = write(tmp_path, "".join(docs))
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
    log = unpacked(REPORTS[3]).partition("==============NVSMI LOG==============")[2].partition("####")[0]
    lost = "Unable to determine the device handle for GPU0: 0000:09:00.0: GPU is lost.  Reboot the system"
    text = f"==============NVSMI LOG=============={log}\nuser@host$ uptime\n{lost}\n{HEAD}{csv_row(1, '70 W')}"
    done, lake = import_smi(write(tmp_path, text))
    assert done.ledger.captures == {"text, -q": 1, "csv, --query-gpu": 1}
    assert done.ledger.sections == {"no title": 2}
    assert done.ledger.refused["a line that says that a GPU is lost, without its UUID"] == 1
    assert lake.read("gpu").height == 2


def test_the_machine_that_an_agent_knows(tmp_path: Path) -> None:
    """``--node-id`` puts a capture on the machine that an agent reports; a host name alone makes an id of its own."""
    path = FIXTURES / "telegraf_smi" / "tesla-t4.xml"
    ids = []
    for asked in (Asked(node="a"), Asked(node="b"), Asked(node="a", node_id="smbios-1")):
        _, lake = import_smi(path, asked)
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
    done, _ = import_smi(write(tmp_path, xml.encode("utf-16")))
    assert done.ledger.stored["gpu"] == 46
