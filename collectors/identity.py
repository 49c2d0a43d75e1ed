"""Which machine this is: the id that records follow through renames, reinstalls and moves.

Order: configured, instance id of the cloud (in a VM, or where the firmware carries it), SMBIOS product UUID unless
it is a placeholder, hash of machine-id. The source is kept beside the id, because an id from a disk image
(machine-id) can be shared by clones while the others cannot.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from graynode.collectors.base import Machine
from graynode.collectors.sysfs import whole_text

_AWS_TAG: Final = re.compile(r"i-(?:[0-9a-f]{8}|[0-9a-f]{17})")
"""EC2 puts the instance id into the SMBIOS board asset tag, on metal instances too."""

_PLACEHOLDER_INSTANCES: Final = frozenset({"", "nocloud", "iid-datasource-none", "iid-local01", "i-abcdefg"})
"""Ids of cloud-init's examples and of its local data sources: every image has them."""

_PLACEHOLDER_UUIDS: Final = frozenset(
    {
        "03000200-0400-0500-0006-000700080009",  # boards shipped with the firmware vendor's sample
        "00020003-0004-0005-0006-000700080009",  # the same, other byte order
        "12345678-1234-5678-90ab-cddeefaabbcc",
        "00112233-4455-6677-8899-aabbccddeeff",
        "4c4c4544-0000-2010-8020-80c04f202020",  # "DELL" and blanks: no service tag set
    }
)


class NoIdentity(Exception):
    """Nothing here tells one machine from another; the text names the key that helps."""


@dataclass(frozen=True, slots=True)
class Roots:
    """Where the machine's own files are. Tests give other roots."""

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    dev: Path = Path("/dev")
    etc: Path = Path("/etc")
    run: Path = Path("/run")
    var: Path = Path("/var")


def resolve(*, cluster: str, state_dir: Path, node_id: str = "", node: str = "", roots: Roots | None = None) -> Machine:
    """This machine. ``node_id`` and ``node`` are the configured values, empty for "find out".

    ``NoIdentity`` where neither configuration, firmware nor operating system names the machine, or where the
    kernel tells no boot id.
    """
    at = roots or Roots()
    found, source = _identify(node_id, at)
    boot_id = _text(at.proc / "sys/kernel/random/boot_id")
    if not boot_id:
        raise NoIdentity(f"{at.proc}/sys/kernel/random/boot_id: cannot be read; graynode needs Linux with /proc")
    name = node or _text(at.proc / "sys/kernel/hostname") or found
    return Machine(cluster, name, found, source, boot_id, state_dir, at.proc, at.sys, at.dev)


def _identify(configured: str, at: Roots) -> tuple[str, str]:
    if configured:
        return configured, "configured"
    instance = instance_id(at)
    if instance:
        return instance, "instance_id"
    product = product_uuid(_text(at.sys / "class/dmi/id/product_uuid"))
    if product:
        return product, "smbios"
    machine = _text(at.etc / "machine-id")
    if machine and machine != "uninitialized":
        return hashed_machine_id(machine), "machine_id"
    raise NoIdentity(
        "this machine cannot be identified: no instance id, no usable SMBIOS product UUID and no "
        f"{at.etc}/machine-id; set agent.node_id"
    )


def instance_id(at: Roots) -> str | None:
    """The cloud's id of this instance, from firmware or from cloud-init's files; nothing is asked over the network.

    cloud-init also runs on metal, where its id changes with every deployment: it is believed only in a VM.
    """
    tag = _text(at.sys / "class/dmi/id/board_asset_tag").lower()
    if _AWS_TAG.fullmatch(tag):
        return tag
    if not _is_vm(at):
        return None
    given = _cloud_init_id(at)
    return given if given.lower() not in _PLACEHOLDER_INSTANCES else None


def product_uuid(text: str) -> str | None:
    """The SMBIOS UUID in lower case, or nothing where the firmware only fills the field."""
    try:
        found = str(uuid.UUID(text.strip()))
    except ValueError:
        return None
    few_digits = len(set(found.replace("-", ""))) < 3  # all zeros, all F, fefefefe…
    return None if few_digits or found in _PLACEHOLDER_UUIDS else found


def hashed_machine_id(machine_id: str) -> str:
    """A UUID made of machine-id, which itself is confidential (machine-id(5))."""
    digest = hashlib.sha256(b"graynode machine-id\0" + machine_id.strip().encode()).hexdigest()
    return str(uuid.UUID(digest[:32]))


def _is_vm(at: Roots) -> bool:
    if (at.sys / "hypervisor/type").exists():
        return True
    for line in _text(at.proc / "cpuinfo").splitlines():
        if line.startswith("flags"):
            return " hypervisor " in f"{line} "
    return False


def _cloud_init_id(at: Roots) -> str:
    try:
        loaded: Any = json.loads(_text(at.run / "cloud-init/instance-data.json"))
        given = loaded["v1"]["instance_id"]
    except (ValueError, KeyError, TypeError):
        given = None
    return given if isinstance(given, str) and given else _text(at.var / "lib/cloud/data/instance-id")


def _text(path: Path) -> str:
    return whole_text(path).strip()
