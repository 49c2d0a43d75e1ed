"""``graynode import --format prometheus`` from a real Prometheus and a real VictoriaMetrics."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from graynode.collectors.dcgm.targets import fleet_target
from graynode.pipeline.lake import Lake
from graynode.pipeline.schema import TABLES
from graynode.service.config import Config, ConfigError
from graynode.service.config_tables import LakeSection
from graynode.service.prometheus.command import Options, run

KINDS = ("VictoriaMetrics", "Prometheus")
END = datetime(2026, 11, 30, 10, tzinfo=UTC)
HOURS = 4
START = END - timedelta(hours=HOURS)
POINTS = HOURS * 12
Series = tuple[dict[str, str], list[tuple[float, float]]]
NewServer = Callable[..., Any]
LONG = pytest.mark.long


def gpu(metric: str, number: int, samples: Sequence[tuple[float, float]], **labels: str) -> Series:
    node = f"n{number // 8}"
    said = {
        "__name__": metric, "gpu": str(number % 8), "UUID": f"GPU-{number:04d}", "modelName": "NVIDIA H100 80GB HBM3",
        "Hostname": node, "instance": f"{node}:9400", "job": "dcgm-exporter", **labels,
    }  # fmt: skip
    return {name: value for name, value in said.items() if value}, list(samples)


def every(
    seconds: int, value: Callable[[int], float], start: datetime = START, end: datetime = END
) -> list[tuple[float, float]]:
    """A sample each so many seconds, 7 s after the full minute, as a scrape would have it."""
    first, last = int(start.timestamp()), int(end.timestamp())
    return [(at + 7.0, value((at - first) // seconds)) for at in range(first, last, seconds)]


def node(metric: str, number: int, samples: Sequence[tuple[float, float]], **labels: str) -> Series:
    return {"__name__": metric, "instance": f"n{number}:9100", "job": "node", **labels}, list(samples)


@functools.cache
def small() -> list[Series]:
    """Two nodes, sixteen GPUs: clocks, power, an energy counter that is reset once, a port and the load."""
    made: list[Series] = []
    for g in range(16):
        made.append(gpu("DCGM_FI_DEV_SM_CLOCK", g, every(60, lambda i, g=g: 1700 + g)))
        made.append(gpu("DCGM_FI_DEV_GPU_UTIL", g, every(60, lambda i: 98)))
        made.append(gpu("DCGM_FI_DEV_FB_USED", g, every(60, lambda i: 40_000)))
        made.append(
            gpu(
                "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
                g,
                every(60, lambda i: 1e9 + i * 36e6 if i < 200 else (i - 199) * 36e6),
            )
        )
    for n in range(2):
        made.append(node("node_load1", n, every(60, lambda i: 12.5)))
        made.append(node("node_boot_time_seconds", n, every(60, lambda i: START.timestamp() - 86_400)))
        made.append(node("node_infiniband_state_id", n, every(60, lambda i: 4), device="mlx5_0", port="1"))
        made.append(
            node("node_infiniband_link_downed_total", n, every(60, lambda i: i // 100), device="mlx5_0", port="1")
        )
    return made


@pytest.fixture(scope="session")
def servers(shared_metrics_server: NewServer) -> Callable[[str], Any]:
    """Both servers, with the same small data."""
    return functools.cache(lambda kind: shared_metrics_server(kind, small()))


def config(folder: Path, cluster: str = "prod") -> Config:
    return Config(cluster=cluster, lake=LakeSection(path=str(folder / "lake")))


def options(at: str, **more: Any) -> Options:
    return Options(**{"url": at, "since": START.isoformat(), "rate": 1000.0, "step_s": 300.0, **more})


def rows_of(folder: Path, name: str) -> pl.DataFrame:
    return Lake(str(folder / "lake")).read(name).sort(*TABLES[name].entity, "ts")


@pytest.fixture(scope="session")
def imported(
    servers: Callable[[str], Any], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[Path, str]]:
    """The small data imported from a server into a lake that nobody changes, and what was said."""

    @functools.cache
    def make(kind: str) -> tuple[Path, str]:
        folder, said = tmp_path_factory.mktemp(f"imported-{kind}"), io.StringIO()
        with contextlib.redirect_stdout(said):
            assert run(config(folder), options(servers(kind).url), now=END) == 0
        return folder, said.getvalue()

    return make


@pytest.mark.parametrize("kind", KINDS)
def test_series_become_rows_and_hours(kind: str, imported: Callable[[str], tuple[Path, str]]) -> None:
    """dcgm-exporter and node-exporter series are rows of gpu, host and link, and their hours, of one node: the one that
    the agentless scraper will know by the same id."""
    folder, said = imported(kind)
    table = functools.partial(rows_of, folder)
    rows = table("gpu")
    assert rows.height == 16 * POINTS
    one = rows.filter(pl.col("gpu_uuid") == "GPU-0003")
    assert one.row(0, named=True)["ts"] == START + timedelta(minutes=5) - timedelta(milliseconds=1)
    assert one["sm_clock_mhz"].unique().to_list() == [1703]
    assert one["node_id"].unique().to_list() == [fleet_target("n0:9400").node_id("prod")]
    assert one["mem_used_bytes"].unique().to_list() == [40_000 << 20]
    assert (one["gpu_index"][0], one["gpu_model"][0], one["node"][0]) == (3, "NVIDIA H100 80GB HBM3", "n0")
    hours = table("gpu_1h").filter(pl.col("gpu_uuid") == "GPU-0003")
    assert hours.height == HOURS
    assert hours["samples"].to_list() == [12] * HOURS
    assert hours["samples_expected"].to_list() == [12] * HOURS
    assert hours["energy_mj_delta"].drop_nulls().max() == 60 * 36e6
    assert hours["resets"].sum() == 1
    assert hours["ts"].to_list() == [START + timedelta(hours=h) for h in range(HOURS)]
    host, link = table("host"), table("link")
    assert host.height == link.height == 2 * POINTS
    assert set(host["node_id"]) == set(link["node_id"]) == set(rows["node_id"])
    assert host["load1"].unique().to_list() == [12.5]
    assert host["uptime_s"].max() == 86_400 + HOURS * 3600
    assert link.select("link", "link_kind", "state").unique().rows() == [("mlx5_0/1", "infiniband", "active")]
    assert table("link_1h")["link_downed_delta"].sum() == 2 * 2
    assert f"{16 * POINTS:>12,} rows stored in gpu\n" in said
    assert "GPU_TEMP" in said  # what could not be judged, and the metric that would change it


def test_both_servers_give_the_same_rows(imported: Callable[[str], tuple[Path, str]]) -> None:
    """What is stored does not depend on which of the two was asked."""
    one, other = (imported(kind)[0] for kind in KINDS)
    for name in ("gpu", "gpu_1h", "host", "host_1h", "link", "link_1h"):
        assert rows_of(one, name).equals(rows_of(other, name))


@pytest.mark.parametrize(
    ("kind", "step_s"),
    [("VictoriaMetrics", 60.0), ("Prometheus", 60.0), pytest.param("Prometheus", 300.0, marks=LONG)],
)
def test_a_gap_stays_a_gap(kind: str, step_s: float, new_metrics_server: NewServer, tmp_path: Path) -> None:
    """No sample is repeated into a step in which there was none, whatever the server's own look-back: its last value
    would otherwise stand for five minutes more. A sample on a boundary counts once."""
    silent = (START + timedelta(hours=2), START + timedelta(hours=3))
    samples = [s for s in every(60, lambda i: 1500 + i) if not silent[0].timestamp() <= s[0] < silent[1].timestamp()]
    samples.append((silent[0].timestamp(), 1999.0))
    server = new_metrics_server(kind, [gpu("DCGM_FI_DEV_SM_CLOCK", 0, sorted(samples))])
    assert run(config(tmp_path), options(server.url, step_s=step_s), now=END) == 0
    rows = rows_of(tmp_path, "gpu")
    seen = [ts for ts in rows["ts"] if silent[0] <= ts < silent[1]]
    assert seen == []
    assert rows.height == int((HOURS - 1) * 3600 / step_s)
    assert rows.filter(pl.col("ts") < silent[0])["sm_clock_mhz"][-1] == 1999
    hours = rows_of(tmp_path, "gpu_1h")
    assert hours["ts"].to_list() == [START + timedelta(hours=h) for h in (0, 1, 3)]


def test_twice_is_as_good_as_once(
    servers: Callable[[str], Any],
    imported: Callable[[str], tuple[Path, str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The same command again asks for nothing that is done; another step finds the hours there and leaves them."""
    server, (before, _) = servers("VictoriaMetrics"), imported("VictoriaMetrics")
    shutil.copytree(before, tmp_path, dirs_exist_ok=True)
    assert run(config(tmp_path), options(server.url), now=END) == 0
    said = capsys.readouterr().out
    assert "pieces had been imported before" in said
    assert " 0 samples" in said
    names = ("gpu_1h", "host_1h", "link_1h")
    assert all(rows_of(tmp_path, name).equals(rows_of(before, name)) for name in ("gpu", *names))
    assert run(config(tmp_path), options(server.url, step_s=600.0), now=END) == 0
    assert all(rows_of(tmp_path, name).equals(rows_of(before, name)) for name in names)
    assert "were there already" in capsys.readouterr().out


def test_tomorrow_goes_on_where_today_ended(
    servers: Callable[[str], Any], imported: Callable[[str], tuple[Path, str]], tmp_path: Path
) -> None:
    """An import up to now, and another one hours later, are together what one import is."""
    for until in (2, HOURS):
        asked = options(servers("VictoriaMetrics").url)
        run(config(tmp_path), asked, now=START + timedelta(hours=until, minutes=10))
    for name in ("gpu", "gpu_1h", "link_1h"):
        assert rows_of(tmp_path, name).equals(rows_of(imported("VictoriaMetrics")[0], name))


@pytest.mark.parametrize(("samples", "kept"), [(False, 0), pytest.param(True, 16 * POINTS, marks=LONG)])
def test_old_samples_are_kept_on_demand_only(
    samples: bool, kept: int, servers: Callable[[str], Any], tmp_path: Path
) -> None:
    """Raw rows beyond their table's retention are not stored, for maintenance would take them; their hours are."""
    asked = options(servers("VictoriaMetrics").url, until=END.isoformat(), samples=samples)
    assert run(config(tmp_path), asked, now=END + timedelta(days=30)) == 0
    assert rows_of(tmp_path, "gpu").height == kept
    assert rows_of(tmp_path, "gpu_1h").height == 16 * HOURS


@pytest.mark.parametrize("kind", ["VictoriaMetrics", pytest.param("Prometheus", marks=LONG)])
def test_labels_of_the_field(
    kind: str, new_metrics_server: NewServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a UUID a series is refused and counted; of a pair of servers one value is kept; a blank is no value; a
    MIG instance has what is its own, and what is its GPU's goes there; a job label is the rows' job, where one is."""
    half = START + timedelta(hours=HOURS / 2)
    server = new_metrics_server(kind, [
        gpu("DCGM_FI_DEV_SM_CLOCK", 0, every(60, lambda i: 1500), job="a"),
        gpu("DCGM_FI_DEV_SM_CLOCK", 0, every(60, lambda i: 1500), job="b"),
        gpu("DCGM_FI_DEV_SM_CLOCK", 1, every(60, lambda i: 1600), UUID=""),
        gpu("DCGM_FI_DEV_MEMORY_TEMP", 0, every(60, lambda i: 2147483634.0)),
        gpu("DCGM_FI_DEV_FB_USED", 0, every(60, lambda i: 9223372036854775794.0)),
        gpu("DCGM_FI_DEV_FB_USED", 0, every(60, lambda i: 100), GPU_I_ID="3", GPU_I_PROFILE="1g.10gb"),
        gpu("DCGM_FI_DEV_GPU_TEMP", 0, every(60, lambda i: 55), GPU_I_ID="3", GPU_I_PROFILE="1g.10gb"),
        gpu("DCGM_FI_DEV_POWER_USAGE", 2, every(60, lambda i: 300, START, half), hpc_job="41"),
        gpu("DCGM_FI_DEV_POWER_USAGE", 2, every(60, lambda i: 301, half, END), hpc_job="42"),
    ])  # fmt: skip
    assert run(config(tmp_path), options(server.url), now=END) == 0
    said = capsys.readouterr().out
    assert "sm_clock_mhz: no GPU is named" in said
    assert f"{POINTS:>12,} values given twice" in said
    assert "mem_temp_c: DCGM: not supported" in said
    assert "mem_used_bytes: DCGM blank" in said
    rows = rows_of(tmp_path, "gpu")
    assert set(rows["gpu_uuid"]) == {"GPU-0000", "GPU-0002"}
    whole = rows.filter((pl.col("gpu_uuid") == "GPU-0000") & pl.col("mig_instance").is_null())
    part = rows.filter(pl.col("mig_instance") == "3")
    assert whole["temp_c"].to_list() == [55] * POINTS
    assert whole["mem_temp_c"].null_count() == whole["mem_used_bytes"].null_count() == POINTS
    assert part["mem_used_bytes"].to_list() == [100 << 20] * POINTS
    assert part["temp_c"].null_count() == POINTS
    jobs = rows.filter(pl.col("gpu_uuid") == "GPU-0002")["job_id"].to_list()
    assert jobs == ["41"] * (POINTS // 2) + ["42"] * (POINTS // 2)


def test_a_changed_last_xid_is_an_event(
    new_metrics_server: NewServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The level that never clears: what it was at the beginning says nothing, a change to another Xid is that Xid, in
    its step, once, however often it is imported; and it is a reason to look at the GPU."""

    def level(i: int) -> float:
        return 31.0 if i < 61 else 79.0 if i < 200 else 0.0

    server = new_metrics_server("VictoriaMetrics", [
        gpu("DCGM_FI_DEV_XID_ERRORS", 5, every(60, level), job="a"),
        gpu("DCGM_FI_DEV_XID_ERRORS", 5, every(60, level), job="b"),
        gpu("DCGM_FI_DEV_SM_CLOCK", 5, every(60, lambda i: 1500)),
    ])  # fmt: skip
    for until in (1, HOURS):  # the first ends just before the change
        asked = options(server.url)
        assert run(config(tmp_path), asked, now=START + timedelta(hours=until, minutes=5)) == 0
    found = Lake(str(tmp_path / "lake")).read("event")
    assert found.select("kind", "code", "gpu_uuid", "source", "ts_quality").rows() == [
        ("xid", 79, "GPU-0005", "import", "approximate")
    ]
    assert found["ts"].to_list() == [START + timedelta(minutes=65) - timedelta(milliseconds=1)]
    said = capsys.readouterr().out
    assert "  1. GPU 5 on n0\n" in said
    assert "fallen off the bus" in said, said


def test_remapped_rows_are_a_reason(
    new_metrics_server: NewServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was remapped before the time says nothing; a row remapped in it does."""
    name = "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS"
    server = new_metrics_server(
        "VictoriaMetrics", [gpu(name, 1, every(60, lambda i: 5)), gpu(name, 2, every(60, lambda i: 5 + i // 150))]
    )
    assert run(config(tmp_path), options(server.url), now=END) == 0
    said = capsys.readouterr().out
    assert "Of 2 GPUs over 8 GPU-hours, 1 to be looked at" in said
    assert "  1. GPU 2 on n0\n       memory rows remapped: 1 for uncorrectable errors" in said


def test_old_and_new_names_are_one_field(new_metrics_server: NewServer, tmp_path: Path) -> None:
    """An exporter that was updated in between, so that DCGM's names changed, is one history."""
    half = START + timedelta(hours=HOURS / 2)
    server = new_metrics_server("VictoriaMetrics", [
        gpu("DCGM_FI_DEV_GPU_TEMP", 0, every(60, lambda i: 50, START, half)),
        gpu("DCGM_FI_DEV_GPU_TEMP_CELSIUS", 0, every(60, lambda i: 60, half, END)),
    ])  # fmt: skip
    assert run(config(tmp_path), options(server.url), now=END) == 0
    assert rows_of(tmp_path, "gpu")["temp_c"].to_list() == [50] * (POINTS // 2) + [60] * (POINTS // 2)


@pytest.mark.parametrize(
    ("kind", "option"),
    [
        pytest.param("VictoriaMetrics", "-search.maxPointsPerTimeseries=13", marks=LONG),
        ("VictoriaMetrics", "-search.maxSamplesPerQuery=2500"),
        pytest.param("VictoriaMetrics", "-search.maxQueryLen=120", marks=LONG),
        ("Prometheus", "--query.max-samples=400"),
    ],
)
def test_what_is_too_much_is_asked_in_pieces(
    kind: str, option: str, new_metrics_server: NewServer, tmp_path: Path
) -> None:
    """A server that allows little gives the same rows, in more queries."""
    server = new_metrics_server(kind, [s for s in small() if s[0]["__name__"] == "DCGM_FI_DEV_SM_CLOCK"], option)
    assert run(config(tmp_path), options(server.url), now=END) == 0
    assert rows_of(tmp_path, "gpu").height == 16 * POINTS
    assert rows_of(tmp_path, "gpu_1h").height == 16 * HOURS


def test_matchers_choose(servers: Callable[[str], Any], tmp_path: Path) -> None:
    """``--match`` takes part of what a shared server has."""
    assert run(config(tmp_path), options(servers("Prometheus").url, match='instance=~"n1:.*"'), now=END) == 0
    assert rows_of(tmp_path, "gpu")["node"].unique().to_list() == ["n1"]


def test_killed_in_the_middle(
    servers: Callable[[str], Any], imported: Callable[[str], tuple[Path, str]], tmp_path: Path
) -> None:
    """Killed between two of a piece's transactions and started again: as if nothing had happened, no row twice."""
    command = [sys.executable, "-I", "-m", "graynode.service.cli", "import", "--format", "prometheus", "--samples"]
    command += ["--url", servers("VictoriaMetrics").url, "--since", START.isoformat(), "--until", END.isoformat()]
    command += ["--lake", str(tmp_path / "lake"), "--rate", "500"]
    surroundings = {**os.environ, "GRAYNODE_CLUSTER": "prod"}
    for commit in ("gpu/_delta_log/*0001.json", "host/_delta_log/*0001.json"):
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=surroundings)
        ends = time.monotonic() + 60
        while not list((tmp_path / "lake").glob(commit)) and child.poll() is None and time.monotonic() < ends:
            time.sleep(0.002)
        assert child.poll() is None, child.communicate()[0]
        os.kill(child.pid, signal.SIGKILL)
        child.communicate()
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=surroundings)
    assert done.returncode == 0, done.stderr
    for name in ("gpu", "gpu_1h", "host", "host_1h", "link_1h"):
        rows = rows_of(tmp_path, name)
        assert rows.equals(rows_of(imported("VictoriaMetrics")[0], name)), name
        assert rows.height == rows.unique([*TABLES[name].entity, "ts"]).height


def test_nothing_there_is_said(
    servers: Callable[[str], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A time without data, and matchers that match nothing, end in a line and code 1."""
    server = servers("Prometheus")
    long_ago = START - timedelta(days=400)
    asked = options(server.url, since=long_ago.isoformat(), until=(long_ago + timedelta(days=2)).isoformat())
    assert run(config(tmp_path), asked, now=END) == 1
    assert "nothing to import" in capsys.readouterr().out
    assert run(config(tmp_path), options(server.url, match='cluster="b"'), now=END) == 1
    assert 'none of its series with cluster="b"' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"url": None}, "--url is missing"),
        ({"url": "ftp://x"}, "an address is wanted"),
        ({"url": "http://me:secret@x"}, "--password-file"),
        ({"step_s": 7.0}, "dividing an hour"),
        ({"since": "soon"}, "--since soon"),
        ({"until": "2020-01-01"}, "leaves no whole hour"),
        ({"rate": 0.0}, "--rate 0"),
        ({"user": "me"}, "--user and --password-file belong together"),
        ({"token_file": Path("/nowhere/token")}, "--token-file /nowhere/token"),
        ({"ca_file": Path("/nowhere/ca.pem")}, "--ca-file /nowhere/ca.pem"),
    ],
)
def test_wrong_options_are_named(wrong: dict[str, Any], said: str, tmp_path: Path) -> None:
    """Each with its value and what is wanted; no secret is shown."""
    with pytest.raises(ConfigError) as error:
        run(config(tmp_path), options("http://127.0.0.1:9", **wrong), now=END)
    assert said in str(error.value)
    assert "secret" not in str(error.value)
