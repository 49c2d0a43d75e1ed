"""What ``graynode doctor`` looks at beside the sources: rights, files, clock, room, kernel. It changes nothing.

Each check says what is, and where something is to mend, the way out.
"""

from __future__ import annotations

import os
import platform
import pwd
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final, Literal

from graynode.collectors.driver_module import driver_module
from graynode.collectors.epoch import LOCK
from graynode.collectors.host_files import ClockState, clock_state
from graynode.collectors.sysfs import text_of
from graynode.pipeline.lock_file import owner_of
from graynode.pipeline.schema import VERSION
from graynode.service.config import Config
from graynode.service.respond_config import files_of

_OTHERS_READ: Final = stat.S_IROTH | stat.S_IWOTH
_GROUP_READ: Final = stat.S_IRGRP | stat.S_IWGRP
_AGENT_USER: Final = "graynode"
"""Of ``deploy/graynode-agent.service``."""
_OFFSET_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Check:
    """``mend`` is something that a person should do; ``note`` is worth knowing; ``way_out`` is what to do."""

    about: str
    state: Literal["well", "note", "mend"]
    said: str
    way_out: str = ""


def node_checks(
    config: Config,
    *,
    proc: Path = Path("/proc"),
    dev: Path = Path("/dev"),
    clock: Callable[[], ClockState | None] = clock_state,
) -> Iterator[Check]:
    """All checks of this machine. None of them raises."""
    yield versions(proc)
    yield user(os.geteuid(), _unit_user())
    yield running_agent(config.agent.state_dir)
    yield state_dir(config.agent.state_dir)
    yield from secrets(config)
    yield kernel_log(config, proc)
    yield nvidia_devices(dev, proc)
    yield clock_check(clock)
    yield from room(config)


def versions(proc: Path) -> Check:
    """What runs here."""
    module = driver_module(text_of(proc / "driver/nvidia/version") or "")
    driver = f"NVIDIA driver {module.version} ({module.kind})" if module else "no NVIDIA driver loaded"
    parts = [
        f"graynode {version('graynode')}",
        f"contract {VERSION[0]}.{VERSION[1]}",
        f"Python {platform.python_version()}",
        f"pyarrow {version('pyarrow')}",
        f"kernel {text_of(proc / 'sys/kernel/osrelease') or 'unknown'}",
        driver,
    ]
    return Check("versions", "well", ", ".join(parts))


def user(uid: int, agent_uid: int | None) -> Check:
    """Whose rights this look has. What root may read says little of what the agent's own user may."""
    if agent_uid is None or uid == agent_uid:
        return Check("user", "well", f"this look has the rights of {_user(uid)}")
    said = f"this look has the rights of {_user(uid)}, the unit's agent those of {_AGENT_USER}: it may differ for it"
    rights = f"-p User={_AGENT_USER} -p AmbientCapabilities='CAP_SYSLOG CAP_DAC_READ_SEARCH'"
    way = f"look as the agent does: systemd-run --pipe {rights} graynode doctor"
    return Check("user", "note", said, way)


def _unit_user() -> int | None:
    try:
        return pwd.getpwnam(_AGENT_USER).pw_uid
    except KeyError:
        return None


def running_agent(folder: Path) -> Check:
    """Whether an agent holds the state folder's lock. One that starts at this moment is not kept out."""
    try:
        owner = owner_of(folder / LOCK)
    except OSError:
        return Check("agent", "note", f"no agent has used {folder} yet, or this user may not look into it")
    if owner is not None:
        return Check("agent", "well", f"runs already (process {owner}); this look does not disturb it")
    return Check(
        "agent", "note", "does not run", "start it: systemctl start graynode-agent, or graynode agent"
    )  # fmt: skip


def state_dir(folder: Path) -> Check:
    """Owner and mode of the folder that outlives the agent."""
    about = "state folder"
    try:
        found = folder.stat()
    except FileNotFoundError:
        return _absent_folder(about, "agent.state_dir", folder)
    except OSError as error:
        return Check(about, "mend", f"{folder}: {error.strerror}", "run this as the agent's user")
    owner, mode = _user(found.st_uid), stat.S_IMODE(found.st_mode)
    what = f"{folder}: owner {owner}, mode {mode:04o}"
    if not stat.S_ISDIR(found.st_mode):
        return Check(about, "mend", f"{folder} is no folder", "name another in agent.state_dir")
    if mode & stat.S_IWOTH:
        return Check(
            about, "mend", f"{what}: anybody may put files there that the agent believes", f"chmod o-w {folder}"
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        way = f"run this as its owner, or chown -R {_user(os.geteuid())} {folder}"
        return Check(about, "mend", f"{what}: this user cannot write there", way)
    return Check(about, "well", what)


def _absent_folder(about: str, key: str, folder: Path) -> Check:
    nearest = next(parent for parent in folder.parents if parent.exists())
    if os.access(nearest, os.W_OK | os.X_OK):
        return Check(about, "note", f"{folder} is not there yet; it is made at the first start")
    way = f"install -d -m 0750 -o {_user(os.geteuid())} {folder}, or name another in {key}"
    return Check(about, "mend", f"{folder} is not there, and this user cannot make it in {nearest}", way)


def secrets(config: Config) -> Iterator[Check]:
    """Files with passwords and keys: there, readable for us, and for nobody else."""
    kafka = config.bus.kafka
    named: dict[str, Path | None] = {}
    if config.bus.kind == "kafka":
        named = {"bus.kafka.password_file": kafka.password_file, "bus.kafka.key_file": kafka.key_file}
    named |= {key: path for key, path in files_of(config.respond) if not key.endswith("ca_file")}
    for key, path in named.items():
        if path is not None:
            yield secret(key, path)


def secret(key: str, path: Path) -> Check:
    """One of them."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        return Check("secret", "mend", f"{key} = {path}: {error.strerror}", "put the file there, or correct the key")
    if not os.access(path, os.R_OK):
        return Check(
            "secret", "mend", f"{key} = {path}: this user may not read it", f"chown it to {_user(os.geteuid())}"
        )
    if mode & _OTHERS_READ:
        return Check(
            "secret", "mend", f"{key} = {path}: mode {mode:04o}, anybody here may read it", f"chmod 0600 {path}"
        )
    if mode & _GROUP_READ:
        return Check("secret", "note", f"{key} = {path}: mode {mode:04o}, its group may read it")
    return Check("secret", "well", f"{key} = {path}: mode {mode:04o}")


def kernel_log(config: Config, proc: Path) -> Check:
    """Whether the kernel log can be opened for reading; opening reads nothing."""
    about, path = "kernel log", config.agent.kmsg
    restricted = text_of(proc / "sys/kernel/dmesg_restrict")
    setting = f"kernel.dmesg_restrict = {restricted or 'unknown'}"
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except PermissionError:
        way = (
            "give the agent CAP_SYSLOG (deploy/graynode-agent.service does)"
            if restricted == "1"
            else f"let it read {path}"
        )
        return Check(about, "mend", f"{path}: not permitted; {setting}: no Xid, AER or MCE is seen", way)
    except OSError as error:
        way = "in a container, mount /dev/kmsg into it; or name a log file in agent.kmsg"
        return Check(about, "mend", f"{path}: {error.strerror}; {setting}", way)
    return Check(about, "well", f"{path} can be read; {setting}")


def nvidia_devices(dev: Path, proc: Path) -> Check:
    """Device files of the driver, and whether we may use them."""
    about = "GPU devices"
    found = sorted(path for path in dev.glob("nvidia[0-9]*") if path.name[6:].isdecimal())
    control = dev / "nvidiactl"
    if not found and not control.exists():
        if (proc / "driver/nvidia/version").exists():
            way = "in a container, give it the GPUs (--gpus all, or the NVIDIA runtime)"
            return Check(about, "mend", f"the driver is loaded, and {dev} has none of its devices", way)
        return Check(about, "note", "none: no NVIDIA driver is loaded on this machine")
    closed = [path.name for path in (control, *found) if not os.access(path, os.R_OK | os.W_OK)]
    if closed:
        return Check(
            about,
            "mend",
            f"this user may not use {', '.join(closed)}",
            "add it to the devices' group, or correct their mode",
        )
    return Check(about, "well", f"{len(found)} GPUs below {dev}")


def clock_check(clock: Callable[[], ClockState | None]) -> Check:
    """Whether the kernel's clock is disciplined."""
    about, found = "clock", clock()
    if found is None:
        return Check(about, "note", "the kernel does not tell whether it is synchronised (a sandbox refuses adjtimex)")
    if not found.synced:
        way = "start chronyd or systemd-timesyncd; above 15 s from the broker the node leaves peer tests"
        return Check(about, "mend", "not synchronised, says the kernel", way)
    if abs(found.offset_s) > _OFFSET_S:
        return Check(about, "mend", f"synchronised, but {found.offset_s:+.3f} s off", "look at chronyc tracking")
    return Check(about, "well", f"synchronised, offset {found.offset_s:+.6f} s")


def room(config: Config) -> Iterator[Check]:
    """Room for what may wait on disk, and for a lake on this machine."""
    if config.bus.kind == "kafka":
        yield free("spool", "agent.spool_max_bytes", config.agent.state_dir, config.agent.spool_max_bytes)
    else:
        yield free("spool", "bus.spool_max_bytes", config.bus.spool_dir, config.bus.spool_max_bytes)
        if "://" not in config.lake.path:
            yield free("lake", "lake.path", Path(config.lake.path), 0)


def free(about: str, key: str, folder: Path, wanted: int) -> Check:
    """Free bytes where the folder is or will be, against what it may grow to beyond its size now."""
    nearest = next(parent for parent in (folder, *folder.parents) if parent.exists())
    try:
        left = shutil.disk_usage(nearest).free
        has = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) if wanted and folder.is_dir() else 0
    except OSError as error:
        return Check(about, "note", f"{folder}: {error.strerror}")
    said = f"{folder}: {_size(left)} free"
    if wanted and left < wanted - has:
        way = f"lower {key}, or make room: a full disk costs samples, counted"
        return Check(about, "mend", f"{said}, and {key} lets it grow by {_size(wanted - has)}", way)
    if not wanted and left < 1 << 30:
        return Check(about, "mend", f"{said}: less than 1 GiB", "make room, or name another place in lake.path")
    return Check(about, "well", f"{said}{f', {key} = {_size(wanted)}' if wanted else ''}")


def _size(number: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "bytes" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
