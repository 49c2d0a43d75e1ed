"""A stand-in ``libnvidia-ml.so.1`` for tests and benchmarks: built from C, told what to answer by a scenario file.

    standin = nvml_standin.build(cache_dir)
    scenario = nvml_standin.h100(tmp_path / "scenario", gpus=8)
    scenario.set("temp", 71, gpu=3).write()
    subprocess.run([...], env=standin.env(scenario.path))

The real ``pynvml`` loads it through ``LD_LIBRARY_PATH``. The file is read again when it changes, so a test
changes what the GPUs answer in mid-run: ``scenario.set(…).write()``. ``README.md`` beside the C source has
the format.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

SOURCE: Final = Path(__file__).with_name("nvml_standin") / "nvml.c"
LIBRARY: Final = "libnvidia-ml.so.1"

# NVML return codes that scenarios use
NOT_SUPPORTED, NO_PERMISSION, DRIVER_NOT_LOADED, IRQ_ISSUE, VERSION_MISMATCH, UNKNOWN = 3, 4, 9, 11, 18, 999

ALL_LINKS: Final = 0xFFFFFFFF
XID: Final = 0x8


@dataclass(frozen=True, slots=True)
class Standin:
    """A built library. ``env`` is what a process needs to load it; ``calls`` records every call, for tests."""

    directory: Path

    def env(self, scenario: Path, *, calls: Path | None = None) -> dict[str, str]:
        """This process's environment with the stand-in in front."""
        env = dict(os.environ)
        env["LD_LIBRARY_PATH"] = str(self.directory)
        env["NVML_STANDIN_SCENARIO"] = str(scenario)
        if calls is not None:
            env["NVML_STANDIN_CALLS"] = str(calls)
        return env


def build(cache_dir: Path, *, without: Sequence[str] = ()) -> Standin:
    """Compile the library into ``cache_dir``, once per source and symbols left out.

    ``without`` hides functions, as a driver older than pynvml lacks them. Without a C compiler the test is
    skipped loudly, and fails where ``CI`` is set.
    """
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        message = "no C compiler: the NVML stand-in was NOT built, and its tests did NOT run (apt-get install gcc)"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    key = hashlib.sha256(SOURCE.read_bytes() + "\n".join(sorted(without)).encode()).hexdigest()[:16]
    directory = cache_dir / f"nvml-{key}"
    if not (directory / LIBRARY).exists():
        _compile(compiler, directory, without)
    return Standin(directory)


def _compile(compiler: str, directory: Path, without: Sequence[str]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    made = directory / f"{LIBRARY}.{os.getpid()}"
    command = [compiler, "-shared", "-fPIC", "-O2", f"-Wl,-soname,{LIBRARY}", "-o", str(made), str(SOURCE)]
    if without:
        hidden = directory / "hidden.map"
        hidden.write_text("{ local: " + " ".join(f"{name};" for name in without) + " };\n")
        command.append(f"-Wl,--version-script={hidden}")
    subprocess.run(command, check=True)
    made.rename(directory / LIBRARY)


@dataclass(slots=True)
class Scenario:
    """What the stand-in answers: values by (scope, key); scope is ``sys``, ``*`` (every GPU) or an index.

    A value is a number (with ``+rate`` it grows by that per second), a name, ``!code`` for an NVML error or
    ``hang``; a trailing `` slow=MS`` makes the call take that long.
    """

    path: Path
    values: dict[tuple[str, str], str] = field(default_factory=dict)
    events: list[tuple[int, int, int, int, int]] = field(default_factory=list)

    def set(self, key: str, value: Any, gpu: int | str = "*") -> Scenario:
        """Answer ``value`` for ``key``; returns itself, so that calls chain."""
        self.values[(str(gpu), key)] = str(value)
        return self

    def update(self, values: dict[str, Any], gpu: int | str = "*") -> Scenario:
        """Several keys of one scope."""
        for key, value in values.items():
            self.set(key, value, gpu)
        return self

    def unset(self, key: str, gpu: int | str = "*") -> Scenario:
        """Take a key back; a key that no scope has is NOT_SUPPORTED."""
        self.values.pop((str(gpu), key), None)
        return self

    def error(self, key: str, code: int, gpu: int | str = "*") -> Scenario:
        """Answer an NVML error for ``key``."""
        return self.set(key, f"!{code}", gpu)

    def event(self, gpu: int, code: int, type_: int = XID, gi: int = ALL_LINKS, ci: int = ALL_LINKS) -> Scenario:
        """Queue an event; event sets that exist when it is written get it once."""
        self.events.append((gpu, type_, code, gi, ci))
        return self

    @property
    def gpus(self) -> int:
        """How many GPUs the scenario has, lost ones included."""
        return int(self.values[("sys", "gpus")])

    def uuid(self, gpu: int) -> str:
        """The UUID that GPU answers."""
        return self.values[(str(gpu), "uuid")]

    def bus(self, gpu: int) -> str:
        """The PCI address as the kernel writes it."""
        return self.values[(str(gpu), "bus")]

    def write(self) -> Scenario:
        """Put the file in place and wait until a running library has to see it."""
        lines = [f"{scope} {key} {value}" for (scope, key), value in self.values.items()]
        lines += [f"event {n} {' '.join(map(str, e))}" for n, e in enumerate(self.events, 1)]
        new = self.path.with_suffix(".new")
        new.write_text("\n".join(lines) + "\n")
        new.rename(self.path)
        time.sleep(0.005)  # the library looks at the file at most every 2 ms
        return self


def pci_tree(root: Path, scenario: Scenario) -> Path:
    """A ``/sys`` with the scenario's GPUs on the PCI bus; returns ``root``. See ``fall_off``."""
    for gpu in range(scenario.gpus):
        device = root / "bus/pci/devices" / scenario.bus(gpu)
        device.mkdir(parents=True, exist_ok=True)
        (device / "vendor").write_text("0x10de\n")
        (device / "class").write_text("0x030200\n")
        (device / "config").write_bytes(bytes.fromhex("de103023") + bytes(60))
    return root


def fall_off(root: Path, bus: str) -> None:
    """What the kernel shows of a GPU that fell off the bus: configuration space reads all ones."""
    (root / "bus/pci/devices" / bus / "config").write_bytes(b"\xff" * 64)


def called(calls: Path) -> list[tuple[str, int, int]]:
    """Every call recorded: (key, GPU, return code)."""
    with contextlib.suppress(FileNotFoundError):
        return list(_calls(calls.read_text()))
    return []


def _calls(text: str) -> Iterator[tuple[str, int, int]]:
    for line in text.splitlines():
        key, gpu, code = line.rsplit(" ", 2)
        yield key, int(gpu), int(code)


# --- models: what a healthy GPU of that kind answers under load -------------------------------------------


def _fleet(path: Path, gpus: int, driver: str, values: dict[str, Any]) -> Scenario:
    scenario = Scenario(path)
    scenario.update({"driver": driver, "nvml": f"13.{driver}", "gpus": gpus, "since": f"{time.time():.3f}"}, "sys")
    scenario.update(values)
    for gpu in range(gpus):
        scenario.update(
            {
                "uuid": f"GPU-{gpu:08x}-5a3c-4e1d-9b2f-{0xABCDEF000000 + gpu:012x}",
                "serial": f"16540230{gpu:05d}",
                "bus": f"0000:{0x18 + 0x10 * gpu:02x}:00.0",
            },
            gpu,
        )
    return scenario.write()


_COMMON: Final[dict[str, Any]] = {
    "clock.sm": 1755, "reasons": 4, "pstate": 0, "temp": 61, "util.gpu": 100, "util.memory": 62,
    "pcie.gen": 4, "pcie.width": 16, "pcie.gen_max": 4, "pcie.width_max": 16, "pcie.replays": 0,
    "pcie.tx_kb": 1200000, "pcie.rx_kb": 900000, "persistence": 1, "processes": 1,
    **{f"violation.{i}": 0 for i in (0, 1, 2, 3, 4, 5, 10, 11)},
    "fi.74": 0, "fi.76": 0,
}  # fmt: skip

_DATACENTRE: Final[dict[str, Any]] = {
    **_COMMON,
    "ecc.mode": 1, "ecc.pending": 1, "mig": 0, "event_types": 0x2 | XID | 0x400 | 0x800,
    **{f"ecc.{kind}.{scope}": 0 for kind in (0, 1) for scope in (0, 1)},
    **{f"ecc.{kind}.{scope}.{place}": 0 for kind in (0, 1) for scope in (0, 1) for place in (1, 2, 7)},
    "remap.cor": 0, "remap.unc": 0, "remap.pending": 0, "remap.failed": 0,
    "bank.max": 2560, "bank.high": 0, "bank.partial": 0, "bank.low": 0, "bank.none": 0,
    "fi.173": 0, "fi.230": "u0", "sram.exceeded": 0, "mem.reserved": 630_000_000,
}  # fmt: skip

_GPM: Final = {
    1: 99.5, 2: 91.0, 3: 31.0, 5: 47.0, 10: 38.0, 11: 0.0, 12: 5.5, 13: 0.25,
    20: 1100.0, 21: 800.0, 60: 250.0, 61: 245.0,
}  # fmt: skip


def _links(count: int, version: int) -> dict[str, Any]:
    """Links that are up, to NVSwitches by turns; the far end's own link number is the same plus 16."""
    return {
        "links": count, "link_version": version, "link_remote": 2, "fi.164": "u26562",
        **{f"link.{i}": 1 for i in range(count)},
        **{f"link_remote_bus.{i}": f"0000:0{5 + i % 4}:00.0" for i in range(count)},
        **{f"fi.146.{i}": f"u{i + 16}" for i in range(count)},
        **{f"fi.{id_}.{i}": f"{1000 * i}+1" for id_ in (138, 139) for i in range(count)},
    }  # fmt: skip


def _hopper(links: int) -> dict[str, Any]:
    return {
        **_DATACENTRE,
        "clock.sm": 1980, "clock.mem": 2619, "clock_max.sm": 1980, "clock_max.mem": 2619,
        "power": 652340, "power.limit": 700000, "power.min": 200000, "power.max": 700000, "power.default": 700000,
        "power.enforced": 700000, "energy": "1000000000+652340", "temp.margin": 26,
        "threshold.0": 92, "threshold.1": 89, "threshold.2": 95, "threshold.3": 87,
        "mem.total": 85_520_809_984, "mem.used": 70_000_000_000,
        "pcie.gen": 5, "pcie.gen_max": 5,
        "fi.82": "u72", "fi.186": "u655120", "fi.269": 0, "fi.270": 0, "fi.271": 0,
        **_links(links, 6), **{f"fi.{i}": 0 for i in (161, 162, 163)},
        **{f"fi.{i}": 0 for i in (38, 45, 52, 59, 160)},
        f"fi.138.{ALL_LINKS}": "500000000+250000", f"fi.139.{ALL_LINKS}": "500000000+250000",
        "fabric.state": 3, "fabric.status": 0, "fabric.clique": 1, "fabric.cluster": 0xAB, "fabric.health": 0x2AA,
        "gpm": 1, "gpm.sample": 1, **{f"gpm.{i}": v for i, v in _GPM.items()},
    }  # fmt: skip


def h100(path: Path, gpus: int = 8, driver: str = "580.126.09") -> Scenario:
    """H100-like: NVLink 4, HBM3, GPM, fabric, field ids of the newer 580 branch."""
    return _fleet(path, gpus, driver, {"name": "NVIDIA H100 80GB HBM3", "vbios": "96.00.A5.00.01", **_hopper(18)})


def b200(path: Path, gpus: int = 8, driver: str = "580.126.09") -> Scenario:
    """B200-like: NVLink 5 counters as sums over all links, bit error ratios packed."""
    counts = {f"fi.{i}.{ALL_LINKS}": 0 for i in (*range(206, 216), 219, 221)}
    counts |= {f"fi.{i}.{ALL_LINKS}": "9000000000+1000000" for i in (202, 204)}
    counts |= {f"fi.{i}.{ALL_LINKS}": 15 << 8 | 255 for i in (220, 222)}
    each = {f"fi.{i}.{link}": 0 for i in (*range(206, 216), 219, 221) for link in range(18)}
    each |= {f"fi.{i}.{link}": f"{10_000 * link}+1000" for i in range(201, 205) for link in range(18)}
    each |= {f"fi.{i}.{link}": 15 << 8 | 255 for i in (220, 222) for link in range(18)}
    counts |= {**each, "link_version": 7, "fi.164": "u53125"}
    return _fleet(path, gpus, driver, {"name": "NVIDIA B200", "vbios": "97.00.60.00.0A", **_hopper(18), **counts})


def a100(path: Path, gpus: int = 8, driver: str = "550.163.01") -> Scenario:
    """A100-like: NVLink 3, no GPM, no temperature margin, throttle times without field ids in this driver."""
    return _fleet(path, gpus, driver, {
        **_DATACENTRE, "name": "NVIDIA A100-SXM4-80GB", "vbios": "92.00.45.00.06",
        "clock.sm": 1410, "clock.mem": 1593, "clock_max.sm": 1410, "clock_max.mem": 1593, "clock_app.sm": 1275,
        "clock_app.mem": 1593, "power": 391120, "power.limit": 400000, "power.min": 100000, "power.max": 400000,
        "power.default": 400000, "power.enforced": 400000, "energy": "5000000000+391120",
        "threshold.0": 92, "threshold.1": 89, "threshold.2": 95, "threshold.3": 85, "mem.total": 85_899_345_920,
        "mem.used": 61_000_000_000, "fi.82": "u66", "fi.186": "u398000", "gpm": 0,
        **_links(12, 5), "no_link_fields": 1, **{f"link_errors.{i}": 0 for i in range(5)},
        **{f"fi.{i}": 0 for i in (38, 45, 52, 59, 160)},
        f"fi.138.{ALL_LINKS}": 7_000_000, f"fi.139.{ALL_LINKS}": 7_000_000,
    })  # fmt: skip


def gb200(path: Path, gpus: int = 4, driver: str = "580.126.09") -> Scenario:
    """A compute tray of a rack: B200's answers, and where in the rack and its NVLink domain each GPU is."""
    scenario = b200(path, gpus, driver)
    scenario.update({
        "name": "NVIDIA GB200", "fabric.cluster": 0xC7, "fabric.clique": 3, "platform.serial": "1820224000317",
        "platform.slot": 24, "platform.tray": 14, "platform.host": 1, "platform.peer": 1,
    })  # fmt: skip
    for gpu in range(gpus):
        scenario.set("platform.module", gpu + 1, gpu)
    return scenario.write()


def a100_pcie(path: Path, gpus: int = 2, driver: str = "550.163.01") -> Scenario:
    """A100 cards in PCIe slots without a bridge: their NVLinks are there and lead nowhere."""
    scenario = a100(path, gpus, driver)
    scenario.update({"name": "NVIDIA A100 80GB PCIe", **{f"link.{i}": 0 for i in range(12)}})
    for i in range(12):
        scenario.unset(f"link_remote_bus.{i}")
    return scenario.unset("link_remote").unset("fi.164").write()


def consumer(path: Path, gpus: int = 1, driver: str = "580.126.09") -> Scenario:
    """A consumer GPU that returns success with nonsense: blanks, zeros and impossible values for what it lacks."""
    return _fleet(path, gpus, driver, {
        **_COMMON, "name": "NVIDIA GeForce RTX 4080 SUPER", "vbios": "95.03.45.00.95",
        "clock.mem": 11501, "clock_max.sm": 3105, "clock_max.mem": 11501, "power": 210000, "power.limit": 320000,
        "power.min": 150000, "power.max": 400000, "power.default": 320000, "power.enforced": 4294967295,
        "energy": 0, "mem.total": 17_171_480_576, "mem.used": 2_000_000_000, "mem.reserved": 400_000_000,
        "threshold.0": 98, "threshold.1": 95, "threshold.3": 65535, "util.memory": 255, "event_types": XID,
        "pcie.replays": 4294967295, "fi.82": "u0", "fi.186": "u4294967295", "fi.173": 18446744073709551615,
        "remap.cor": 0, "remap.unc": 0, "remap.pending": 0, "remap.failed": 0, "gpm": 0,
    })  # fmt: skip


def mig(scenario: Scenario, gpu: int = 0) -> Scenario:
    """Turn MIG on for one GPU: two instances, 3g.40gb and 4g.40gb; the parent loses utilisation and row remaps."""
    for n, (gi, profile) in enumerate(((1, "3g.40gb"), (2, "4g.40gb"))):
        instance(scenario, gpu, n, gi, profile)
    scenario.set("mig", 1, gpu)
    for key in ("util.gpu", "util.memory", "remap.cor"):
        scenario.error(key, NOT_SUPPORTED, gpu)
    return scenario.write()


def instance(scenario: Scenario, gpu: int, place: int, gi: int, profile: str) -> Scenario:
    """Make a GPU instance with one compute instance at that index of the list; written by whoever changes more."""
    return scenario.update({
        f"mig.{place}.gi": gi, f"mig.{place}.uuid": f"MIG-{gpu:08x}-0000-0000-0000-{gi:012x}",
        f"mig.{place}.name": f"NVIDIA H100 80GB HBM3 MIG {profile}", f"mig.{place}.mem.total": 42_000_000_000,
        f"mig.{place}.mem.used": 10_000_000_000 * gi, f"mig.{place}.mem.reserved": 30_000_000,
        f"mig.{place}.processes": gi, f"mig.{place}.gpm.2": 40.0 * gi, f"mig.{place}.gpm.5": 12.0,
    }, gpu)  # fmt: skip


def no_instance(scenario: Scenario, gpu: int, place: int) -> Scenario:
    """Destroy the instance at that index: its handle answers NOT_FOUND from now on."""
    for scope, key in list(scenario.values):
        if scope == str(gpu) and key.startswith(f"mig.{place}."):
            del scenario.values[scope, key]
    return scenario
