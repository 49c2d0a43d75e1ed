"""Pages become rows: what operators report of exporters (docs/telemetry-traps.md), with the values of the field."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import exporter_standin as standin
import pytest
from exporter_standin import DEFAULT, line, page, uuid_of
from hypothesis import given, settings
from hypothesis import strategies as st

from graynode.collectors.dcgm.rows import PageRows, Told
from graynode.collectors.switches import Switches, switches
from graynode.pipeline.codec import to_batch
from graynode.pipeline.schema import TABLES

DEV, PROF = "DCGM_FI_DEV_", "DCGM_FI_PROF_"
NOW = datetime(2027, 1, 15, 8, 0, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)


class Exporter:
    """One exporter's pages, ten seconds apart."""

    def __init__(self, switches: Switches | None = None) -> None:
        self.rows, self.second = PageRows(switches=switches), 0.0

    def take(self, body: bytes | str, *, whole: bool = True, after_s: float = 10.0) -> Told:
        self.second += after_s
        body = body if isinstance(body, bytes) else body.encode()
        told = self.rows.take(body, whole=whole, at_s=self.second, ts=NOW)
        for table, some in (("gpu", told.gpus), ("quality", told.quality), ("inventory", told.inventory)):
            if some:
                to_batch(TABLES[table], some)
        return told


def said(told: Told, entity: str | None = None) -> dict[str, str]:
    """State by field, of one entity or of all; "first seen" left out."""
    return {
        row["field"]: row["state"]
        for row in told.quality
        if entity in (None, row["entity"]) and row["reason"] != "first seen" and row["entity"]
    }


def only(told: Told, gpu: int = 0, instance: str | None = None) -> dict[str, Any]:
    found = [r for r in told.gpus if r["gpu_uuid"] == uuid_of(gpu) and r["mig_instance"] == instance]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize(
    ("file", "uuid", "power", "fields"),
    [
        ("l4-580.105.08.prom", "GPU-c2f76b33-7953-256e-8f33-1343419b1a1c", 16.365, 19),
        ("l40s-595.58.03.prom", "GPU-5b4e07f6-3a86-4340-039d-25f2a83cdc43", 35.686, 19),
    ],
)
def test_captured_page_as_rows(file: str, uuid: str, power: float, fields: int) -> None:
    """A real page: one row, its identity, units of the contract; 0 °C of a GPU without HBM is no temperature."""
    told = Exporter().take((standin.FIXTURES / file).read_bytes())
    (row,) = told.gpus
    measured = {n: v for n, v in row.items() if n not in ("gpu_uuid", "mig_instance", "gpu_index", "gpu_model",
                                                          "pci_bus_id", "job_id")}  # fmt: skip
    assert (row["gpu_uuid"], row["gpu_index"], row["power_w"]) == (uuid, 0, power)
    assert row["pci_bus_id"] in ("0000:31:00.0", "0000:00:07.0")
    assert row["mem_reserved_bytes"] in (470 << 20, 608 << 20)
    assert "mem_temp_c" not in row
    assert said(told, uuid) == {"mem_temp_c": "implausible"}
    assert len(measured) == fields
    assert {r["field"] for r in told.quality if not r["entity"]} == {
        f"{DEV}ENC_UTIL", f"{DEV}DEC_UTIL", f"{DEV}VGPU_LICENSE_STATUS",
    }  # fmt: skip
    (inventory,) = told.inventory
    assert inventory["driver_version"] in ("580.105.08", "595.58.03")
    assert inventory["slot"] == row["pci_bus_id"]


def test_what_is_read_is_stored_refused_or_named() -> None:
    """The count adds up over captured pages and hostile ones: nothing is dropped silently."""
    exporter = Exporter()
    for path in standin.FIXTURES.glob("*.prom"):
        exporter.take(path.read_bytes())
    exporter.take(page(8, more={"GPU_I_ID": "3", "GPU_I_PROFILE": "1g.10gb"}))
    exporter.take(page(2) + page(1) + b'go_goroutines 7\nup{job="x"} 1\nbroken{ 1\n')
    exporter.take(line(f"{DEV}GPU_TEMP", 9223372036854775794) + line(f"{DEV}TOTAL_ENERGY_CONSUMPTION", 0))
    tally = exporter.rows.tally
    assert tally.read == tally.stored + tally.refused.total() + tally.foreign.total() + tally.repeated
    assert min(tally.stored, tally.refused.total(), tally.foreign.total(), tally.repeated, tally.bad_lines) > 0


# --- rows of docs/telemetry-traps.md -----------------------------------------------------------------------


def test_row_1_sentinel_exported_as_a_metric() -> None:
    """gpu-monitoring-tools PR #92, #152: 9223372036854775794, and 9223372036854776000 % with MIG: a state, no value."""
    told = Exporter().take((standin.FIXTURES / "readme-blank.prom").read_bytes())
    (row,) = told.gpus
    assert row["sm_clock_mhz"] == 139
    assert "mem_temp_c" not in row
    (why,) = [r for r in told.quality if r["field"] == "mem_temp_c"]
    assert (why["state"], why["entity"]) == ("unsupported", "GPU-604ac76c-d9cf-fef3-62e9-d92044ab6e52")
    assert why["reason"] == f"{DEV}MEMORY_TEMP_CELSIUS: DCGM: not supported"
    told = Exporter().take(line(f"{DEV}GPU_UTIL", "9223372036854776000") + line(f"{DEV}SM_CLOCK", 1980))
    assert "gpu_util_percent" not in only(told)
    assert said(told) == {"gpu_util_percent": "unsupported"}


def test_row_2_one_bad_field_does_not_lose_the_page() -> None:
    """slurm-job-exporter #30, PR #53: blanks on H100 and 1.4e16 % while paused; all else of the node is stored."""
    bad = {f"{PROF}SM_ACTIVE": "140737488355328.0", f"{PROF}DRAM_ACTIVE": "1.4e16", f"{DEV}GPU_TEMP": "oops"}
    told = Exporter().take(page(8, {**DEFAULT, **bad}))
    assert len(told.gpus) == 8
    assert all(row["power_w"] == 113.611 and "sm_active_ratio" not in row for row in told.gpus)
    assert said(told, uuid_of(7)) == {"sm_active_ratio": "stale", "dram_active_ratio": "implausible", "temp_c": "error"}


def test_row_3_vanished_is_not_zero() -> None:
    """dcgm-exporter #700: metrics that used to be 0 became N/A and vanish: null, said once, and said when they are
    back."""
    exporter = Exporter()
    values = {**DEFAULT, f"{DEV}NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": 0}
    assert only(exporter.take(page(1, values)))["nvlink_crc_flit_errors"] == 0
    without = exporter.take(page(1))
    assert "nvlink_crc_flit_errors" not in only(without)
    assert said(without) == {"nvlink_crc_flit_errors": "stale"}
    assert "N/A is not zero" in next(r["reason"] for r in without.quality if r["state"] == "stale")
    assert said(exporter.take(page(1))) == {}
    assert said(exporter.take(page(1, values))) == {"nvlink_crc_flit_errors": "measured"}


def test_row_5_the_last_xid_is_a_level_not_an_event() -> None:
    """dcgm-exporter #500, #190 …: the gauge never returns to 0 and hides repeats: nothing is stored of it, and the page
    says why once."""
    exporter = Exporter()
    told = exporter.take(page(2, {**DEFAULT, f"{DEV}XID_ERRORS": 79}))
    assert all(79 not in row.values() for row in told.gpus)
    (why,) = [r for r in told.quality if r["field"] == f"{DEV}XID_ERRORS"]
    assert "events come from the kernel log" in why["reason"]
    assert exporter.take(page(2, {**DEFAULT, f"{DEV}XID_ERRORS": 79})).quality == []
    assert exporter.rows.tally.foreign[f"{DEV}XID_ERRORS"] == 4


def test_row_8_more_than_all_of_an_instance() -> None:
    """DCGM #152: SM activity of 137 % on MIG is no measurement."""
    told = Exporter().take(line(f"{PROF}SM_ACTIVE", "1.37", GPU_I_ID="7", GPU_I_PROFILE="1g.10gb"))
    assert "sm_active_ratio" not in only(told, instance="7")
    assert said(told, f"{uuid_of(0)}/7") == {"sm_active_ratio": "implausible"}


def test_row_9_energy_of_nothing_and_energy_that_falls() -> None:
    """DCGM #171: 0 J of a GPU that runs is refused; a counter that fell is given as it is: the windows make a reset of
    it, and no 3.69 TW."""
    exporter = Exporter()
    name = f"{DEV}TOTAL_ENERGY_CONSUMPTION"
    assert said(exporter.take(page(1, {**DEFAULT, name: 0}))) == {"energy_mj": "implausible"}
    assert said(exporter.take(page(1))) == {"energy_mj": "measured"}
    assert only(exporter.take(page(1, {**DEFAULT, name: 120})))["energy_mj"] == 120


def test_row_12_profiling_taken_away_and_given_back() -> None:
    """DCGM #56: while another profiler holds the counters they are blank or gone, and nothing else is."""
    exporter = Exporter()
    exporter.take(page(1))
    paused = {n: ("140737488355328.0" if n.startswith(PROF) else v) for n, v in DEFAULT.items()}
    told = exporter.take(page(1, paused))
    ratios = {"gr_engine_active_ratio", "tensor_active_ratio", "dram_active_ratio"}
    rates = {"pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s"}
    assert said(told) == dict.fromkeys(ratios | rates, "stale")
    assert only(told)["gpu_util_percent"] == 99
    gone = {n: v for n, v in DEFAULT.items() if not n.startswith(PROF)}
    assert said(exporter.take(page(1, gone))) == {}
    assert said(exporter.take(page(1))) == dict.fromkeys(ratios | rates, "measured")


def test_row_13_and_14_rates_are_gauges_whatever_the_page_calls_them() -> None:
    """dcgm-exporter #721, #87: PROF_PCIE_*_BYTES are rates called counters; a 0 is stored as 0, and the constant zero
    of a model is for the normaliser to find over time."""
    body = f"# TYPE {PROF}PCIE_TX_BYTES counter\n" + line(f"{PROF}PCIE_TX_BYTES", 0) + line(f"{PROF}NVLINK_RX_BYTES", 7)
    row = only(Exporter().take(body))
    assert (row["pcie_tx_bytes_per_s"], row["nvlink_rx_bytes_per_s"]) == (0, 7)
    assert TABLES["gpu"].field("pcie_tx_bytes_per_s").kind == "gauge"


def test_row_14_violation_time_in_the_wrong_unit_is_found_by_its_pace() -> None:
    """Help texts call violation times µs, the header ns: taken as ns, and refused where they grow faster than time."""
    exporter = Exporter()
    name, field = f"{DEV}POWER_VIOLATION", "violation_power_ns"
    first = exporter.take(f"# HELP {name} Throttling duration due to power constraints (in us).\n" + line(name, 10**9))
    assert only(first)[field] == 10**9
    held = exporter.take(line(name, 10**9 + 9 * 10**9), after_s=10)
    assert only(held)[field] == 10**10  # nine of ten seconds held
    wrong = exporter.take(line(name, 10**10 + 10**13), after_s=10)
    assert field not in only(wrong)
    assert said(wrong) == {field: "implausible"}
    assert "grew by" in wrong.quality[-1]["reason"]


def test_row_14_a_page_that_is_half_a_minute_behind_is_not_too_fast() -> None:
    """dcgm-exporter reads every 30 s and is asked every 10: what it held back comes at once."""
    exporter = Exporter()
    name = f"{DEV}POWER_VIOLATION"
    for step in range(60):
        told = exporter.take(line(name, 10**9 + (step // 3) * 30 * 10**9))
        assert said(told) == {}, step


def test_row_15_mig_instances_are_rows_under_their_parent() -> None:
    """Framebuffer and engine activity are the instance's; what DCGM repeats of the GPU is the parent's, once."""
    more = {"GPU_I_PROFILE": "1g.10gb"}
    values = {f"{DEV}FB_USED": 3, f"{DEV}POWER_USAGE": "68.3", f"{PROF}GR_ENGINE_ACTIVE": "0.5", f"{DEV}GPU_TEMP": 29}
    body = "".join(line(n, v, GPU_I_ID=gi, **more) for n, v in values.items() for gi in ("7", "8", "9"))
    exporter = Exporter()
    told = exporter.take(body)
    assert [r["mig_instance"] for r in told.gpus] == ["7", "8", "9", None]
    assert only(told, instance="8")["mem_used_bytes"] == 3 << 20
    assert only(told, instance="8")["gr_engine_active_ratio"] == 0.5
    assert "power_w" not in only(told, instance="8")
    parent = only(told)
    assert (parent["power_w"], parent["temp_c"], "mem_used_bytes" in parent) == (68.3, 29, False)
    assert exporter.rows.tally.repeated == 4
    told_of = {row["entity"]: row for row in told.inventory}
    assert told_of[uuid_of(0)]["mig_profile"] == "1g.10gb,1g.10gb,1g.10gb"
    instance = told_of[f"{uuid_of(0)}/8"]
    assert (instance["kind"], instance["mig_profile"]) == ("mig", "1g.10gb")
    assert json.loads(instance["attributes"]) == {"gpu_uuid": uuid_of(0), "mig_instance": "8"}
    assert exporter.take(body).inventory == []
    other = exporter.take("".join(part for part in body.splitlines(keepends=True) if 'GPU_I_ID="9"' not in part))
    assert {(r["entity"], r.get("valid_until")) for r in other.inventory} == {
        (f"{uuid_of(0)}/9", NOW), (uuid_of(0), None),
    }  # fmt: skip


def test_row_15_instance_id_that_is_no_number() -> None:
    """vGPU ids "FAILED TO CONVERT" belong to nobody: counted and named, and the GPU's own lines go on."""
    exporter = Exporter()
    told = exporter.take(line(f"{DEV}GPU_TEMP", 29) + line(f"{DEV}FB_USED", 3, GPU_I_ID="FAILED TO CONVERT"))
    assert only(told)["temp_c"] == 29
    assert "mem_used_bytes" not in only(told)
    assert "GPU instance id 'FAILED TO CONVERT' is no number" in exporter.rows.tally.foreign
    assert any("FAILED TO CONVERT" in r["field"] for r in told.quality)


def test_row_16_one_gpu_is_lost_and_the_others_go_on() -> None:
    """Its lines vanish: said of that GPU alone, as what one witness says; 7 rows go on, and it can come back."""
    exporter = Exporter()
    exporter.take(page(8))
    told = exporter.take(page(7))
    assert (len(told.gpus), told.uuids) == (7, 7)
    assert said(told) == {"*": "stale"}
    (gone,) = [r for r in told.quality if r["field"] == "*"]
    assert (gone["entity"], "one witness" in gone["reason"]) == (uuid_of(7), True)
    assert exporter.take(page(7)).quality == []
    back = exporter.take(page(8))
    assert said(back) == {"*": "measured"}


# --- the rest of what pages do -----------------------------------------------------------------------------


def test_jobs_by_pod_and_by_slurm_id() -> None:
    """namespace/pod, exported_ where a Prometheus lies between, the batch job's id of --hpc-job-mapping-dir."""
    name = f"{DEV}GPU_UTIL"
    body = line(name, 1, 0, namespace="ml", pod="train-0", container="main", pod_uid="")
    body += line(name, 1, 1, hpc_job="51234567")
    body += line(
        name, 1, 2, exported_namespace="ml", exported_pod="serve-1", namespace="gpu-operator", pod="exporter-x"
    )
    body += line(name, 1, 3, pod="", namespace="")
    told = Exporter().take(body)
    assert [row["job_id"] for row in told.gpus] == ["ml/train-0", "51234567", "ml/serve-1", None]


def test_gpu_that_several_pods_share_has_no_job() -> None:
    """Time slicing repeats each series per pod: the value once, the job unknown with both named, until one is left."""
    exporter = Exporter()
    name = f"{DEV}GPU_UTIL"
    two = line(name, 55, pod="a", namespace="x") + line(name, 55, pod="b", namespace="x")
    told = exporter.take(two)
    assert (only(told)["job_id"], only(told)["gpu_util_percent"]) == (None, 55)
    assert said(told) == {"job_id": "error"}
    assert "x/a, x/b" in told.quality[-1]["reason"]
    assert exporter.take(two).quality == []
    alone = exporter.take(line(name, 55, pod="b", namespace="x"))
    assert only(alone)["job_id"] == "x/b"
    assert said(alone) == {"job_id": "measured"}


def test_line_without_pod_labels_takes_no_job_away() -> None:
    """Some metrics carry the pod, some do not: the one that is named holds."""
    told = Exporter().take(line(f"{DEV}GPU_TEMP", 40) + line(f"{DEV}GPU_UTIL", 1, pod="a", namespace="x"))
    assert only(told)["job_id"] == "x/a"
    assert said(told) == {}


def test_another_source_knows_the_job_better() -> None:
    """Where Slurm or the kubelet has told the job, the pod's name is not put in its place."""
    rows = PageRows(knows_job=lambda uuid, _instance: uuid == uuid_of(1))
    body = "".join(line(f"{DEV}GPU_UTIL", 1, gpu, pod="a", namespace="x") for gpu in (0, 1)).encode()
    told = rows.take(body, whole=True, at_s=1.0, ts=NOW)
    assert [row["job_id"] for row in told.gpus] == ["x/a", None]


def test_page_that_was_cut_calls_nothing_gone() -> None:
    """What is whole is kept; what did not come is neither vanished nor lost, and no state changes twice."""
    exporter = Exporter()
    body = page(8)
    exporter.take(body)
    half = body[: len(body) // 2].rpartition(b"\n")[0] + b"\n"
    told = exporter.take(half, whole=False)
    assert len(told.gpus) == 8
    assert told.quality == []
    assert "gr_engine_active_ratio" not in told.gpus[0]
    three = b"".join(body.splitlines(keepends=True)[:5])
    assert len(exporter.take(three, whole=False).gpus) == 3
    assert exporter.take(three, whole=False).quality == []
    assert exporter.take(body).quality == []


def test_series_twice_on_one_page() -> None:
    """The first of them counts; the other is counted."""
    exporter = Exporter()
    told = exporter.take(line(f"{DEV}GPU_TEMP", 40) + line(f"{DEV}GPU_TEMP", 90))
    assert only(told)["temp_c"] == 40
    assert exporter.rows.tally.repeated == 1


def test_line_that_is_old_was_not_measured_now() -> None:
    """A page with times of its own (a federation): what is two minutes old is stale."""
    fresh, old = NOW_MS - 30_000, NOW_MS - 3_600_000
    told = Exporter().take(line(f"{DEV}GPU_TEMP", f"40 {fresh}") + line(f"{DEV}SM_CLOCK", f"1980 {old}"))
    assert only(told)["temp_c"] == 40
    assert said(told) == {"sm_clock_mhz": "stale"}


def test_lower_case_host_and_uuid_labels() -> None:
    """DCGM 4.6's exporter writes hostname, the old namespace uuid: the same GPU and node."""
    told = Exporter().take(f'{DEV}GPU_TEMP{{gpu="2",uuid="GPU-a",model_name="NVIDIA A30",hostname="n1"}} 33\n')
    (row,) = told.gpus
    assert (row["gpu_uuid"], row["gpu_index"], row["gpu_model"], told.host) == ("GPU-a", 2, "NVIDIA A30", "n1")


def test_links_switches_and_other_programs_are_counted_and_said_once() -> None:
    """Lines about no GPU: by what they are about, one quality row each, not one a scrape."""
    body = f'{DEV}NVLINK_BANDWIDTH_L0{{nvlink="0",gpu="0",gpu_uuid="GPU-a"}} 5\n'
    body += 'DCGM_FI_DEV_NVSWITCH_TEMPERATURE_CURRENT{nvswitch="nvswitch0"} 40\ngo_goroutines 9\n'
    exporter = Exporter()
    told = exporter.take(body)
    assert told.gpus == []
    assert {r["field"] for r in told.quality} == {"per link", "no GPU is named"}
    assert exporter.take(body).quality == []
    assert exporter.rows.tally.foreign == {"per link": 2, "no GPU is named": 4}


def test_switched_off_and_slowed_down_fields() -> None:
    """``[fields]`` holds for pages too: what is off is said per GPU, once; a slower class has its value once a
    minute, and is never called gone."""
    exporter = Exporter(switches(["mem_util_percent"], {"gpu.temp_c": 60}))
    told = [exporter.take(page(1)) for _ in range(12)]
    assert all("mem_util_percent" not in row for t in told for row in t.gpus)
    off = [row for t in told for row in t.quality if row["entity"] and row["state"] == "unsupported"]
    assert [(row["field"], row["entity"]) for row in off] == [("mem_util_percent", uuid_of(0))]
    assert "fields.off" in off[0]["reason"]
    assert [n for n, t in enumerate(told) if "temp_c" in t.gpus[0]] == [0, 5, 11]
    assert not any(row["state"] == "stale" for t in told for row in t.quality)
    tally = exporter.rows.tally
    assert tally.read == tally.stored + tally.refused.total() + tally.foreign.total() + tally.repeated


def test_row_4_fields_differ_between_models_of_one_fleet() -> None:
    """dcgm-exporter #581: on GB200 ECC_SBE_VOL_TOTAL goes when NVLINK_COUNT_* is collected. Each exporter's GPUs have
    their own state, whatever names and field sets they share with others."""
    names: dict[bytes, Any] = {}
    shared: dict[frozenset[str], frozenset[str]] = {}
    gb200, h100 = (PageRows(names, shared) for _ in range(2))
    ecc = {**DEFAULT, f"{DEV}ECC_SBE_VOL_TOTAL": 3}
    nvlink = {**DEFAULT, f"{DEV}NVLINK_COUNT_TX_BYTES": 10**12}
    for step, values in enumerate((ecc, nvlink, nvlink)):
        ours = gb200.take(page(4, values), whole=True, at_s=10.0 * step, ts=NOW)
        other = h100.take(page(8, ecc, node=1), whole=True, at_s=10.0 * step, ts=NOW)
        assert all(row["ecc_sbe_volatile"] == 3 for row in other.gpus)
        assert said(other) == {}
        assert said(ours) == ({"ecc_sbe_volatile": "stale"} if step == 1 else {})
        assert all(("ecc_sbe_volatile" in row) == (step == 0) for row in ours.gpus)


def test_hostile_page_is_bounded() -> None:
    """Ten thousand invented GPUs with ids of any length: a node has not that many; the rest is counted."""
    body = "".join(f'{DEV}GPU_TEMP{{gpu="{n}",UUID="GPU-{n}"}} 40\n' for n in range(3000))
    body += f'{DEV}GPU_TEMP{{UUID="{"x" * 5000}"}} 40\n'
    exporter = Exporter()
    told = exporter.take(body)
    assert len(told.gpus) == 1024
    assert exporter.rows.tally.foreign["more GPUs than one node has"] == 3000 - 1024
    assert exporter.rows.tally.foreign["GPU id too long"] == 1


def test_instances_that_come_and_go_for_months_leave_room() -> None:
    """MIG is made anew again and again: what is long gone is forgotten, what is there is read."""
    exporter = Exporter()
    for turn in range(300):
        ids = range(turn * 8, turn * 8 + 7)
        body = "".join(line(f"{DEV}FB_USED", 3, GPU_I_ID=str(n), GPU_I_PROFILE="1g.10gb") for n in ids)
        assert len(exporter.take(body).gpus) == 7, turn
    assert exporter.rows.tally.foreign == {}


def test_names_without_end_are_counted_together() -> None:
    """An endpoint that invents names fills neither memory nor the change log."""
    exporter = Exporter()
    told = [
        exporter.take("".join(line(f"N{turn}_{n}" + "x" * 300, 1) for n in range(1000))) for turn in range(10)
    ]  # fmt: skip
    assert sum(len(t.quality) for t in told) < 600
    assert all(len(r["field"]) <= 200 for t in told for r in t.quality)
    tally = exporter.rows.tally
    assert len(tally.foreign) <= 4097
    assert tally.foreign["(other names)"] > 0
    assert tally.foreign.total() == tally.read == 10_000


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**6), st.binary(max_size=6)), max_size=12), st.booleans())
def test_damaged_page_gives_rows_of_the_contract(damage: list[tuple[int, bytes]], whole: bool) -> None:
    """Bytes overwritten anywhere: whatever still reads is within the contract, and the counts add up."""
    exporter = Exporter()
    exporter.take(page(2))
    body = bytearray(page(2, more={"GPU_I_ID": "3", "GPU_I_PROFILE": "1g.10gb", "pod": "a", "namespace": "b"}))
    for at, other in damage:
        at %= len(body)
        body[at : at + len(other)] = other
    for row in exporter.take(bytes(body), whole=whole).gpus:
        for name, value in row.items():
            field = TABLES["gpu"].field(name)
            if isinstance(value, int | float):
                assert field.lo is None or value >= field.lo
                assert field.hi is None or value <= field.hi
    tally = exporter.rows.tally
    assert tally.read == tally.stored + tally.refused.total() + tally.foreign.total() + tally.repeated
