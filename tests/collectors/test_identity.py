"""Which machine this is, from files as clouds, vendors and installers leave them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from node_files import write

from graynode.collectors.base import Machine
from graynode.collectors.identity import NoIdentity, Roots, product_uuid, resolve

UUID = "4c4c4544-0042-3510-8052-b4c04f4d3232"


class Files:
    """A machine's files that tell who it is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        parts = ("proc", "sys", "dev", "etc", "run", "var")
        self.roots = Roots(**{part: folder / part for part in parts})
        self.put("proc/sys/kernel/random/boot_id", "d9557597-7f1d-419e-9597-2862ed5ff841")
        self.put("proc/sys/kernel/hostname", "gpu-017")

    def put(self, path: str, text: str) -> Files:
        write(self.folder / path, f"{text}\n")
        return self

    def vm(self) -> Files:
        return self.put("proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu vme hypervisor lahf_lm")

    def who(self, **configured: str) -> Machine:
        return resolve(cluster="c", state_dir=self.folder / "state", roots=self.roots, **configured)

    def id(self) -> tuple[str, str]:
        machine = self.who()
        return machine.node_id, machine.node_id_source


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_the_configured_id_comes_first(files: Files) -> None:
    """Whatever the firmware says, a person's word counts; so does the name."""
    files.put("sys/class/dmi/id/product_uuid", UUID)
    machine = files.who(node_id="rack7-u3", node="n7")
    assert (machine.node_id, machine.node_id_source, machine.node) == ("rack7-u3", "configured", "n7")


def test_metal_is_known_by_its_product_uuid(files: Files) -> None:
    """In lower case, with boot id and host name beside it; cloud-init's id changes with deployments of metal."""
    files.put("sys/class/dmi/id/product_uuid", UUID.upper()).put("etc/machine-id", "3" * 32)
    files.put("var/lib/cloud/data/instance-id", "deployment-5")
    machine = files.who()
    assert (machine.node_id, machine.node_id_source) == (UUID, "smbios")
    assert machine.boot_id == "d9557597-7f1d-419e-9597-2862ed5ff841"
    assert machine.node == "gpu-017"


def test_a_vm_is_known_by_its_instance_id(files: Files) -> None:
    """cloud-init's file of this boot, else the one it keeps."""
    files.vm().put("sys/class/dmi/id/product_uuid", UUID).put("var/lib/cloud/data/instance-id", "vm-kept")
    assert files.id() == ("vm-kept", "instance_id")
    files.put("run/cloud-init/instance-data.json", json.dumps({"v1": {"instance_id": "vm-now"}}))
    assert files.id() == ("vm-now", "instance_id")


@pytest.mark.parametrize("text", ["{", "[]", '{"v1": 3}', '{"v1": {"instance_id": 5}}'])
def test_a_broken_file_of_cloud_init_is_passed_over(files: Files, text: str) -> None:
    """The next source answers."""
    files.vm().put("sys/class/dmi/id/product_uuid", UUID).put("run/cloud-init/instance-data.json", text)
    assert files.id() == (UUID, "smbios")


@pytest.mark.parametrize("placeholder", ["nocloud", "iid-datasource-none", "iid-local01"])
def test_ids_that_every_image_has_are_none(files: Files, placeholder: str) -> None:
    """cloud-init's local data sources name all machines alike."""
    files.vm().put("sys/class/dmi/id/product_uuid", UUID).put("var/lib/cloud/data/instance-id", placeholder)
    assert files.id() == (UUID, "smbios")


def test_ec2_writes_the_instance_id_into_the_firmware(files: Files) -> None:
    """On metal instances too; other asset tags are not ids."""
    files.put("sys/class/dmi/id/product_uuid", UUID).put("sys/class/dmi/id/board_asset_tag", "i-0123456789abcdef0")
    assert files.id() == ("i-0123456789abcdef0", "instance_id")
    files.put("sys/class/dmi/id/board_asset_tag", "Not Specified")
    assert files.id() == (UUID, "smbios")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Not Settable",
        "00000000-0000-0000-0000-000000000000",
        "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF",
        "fefefefe-fefe-fefe-fefe-fefefefefefe",
        "03000200-0400-0500-0006-000700080009",
        "12345678-1234-5678-90ab-cddeefaabbcc",
    ],
)
def test_placeholder_uuids_are_none(text: str) -> None:
    """Firmware that was never told its board's UUID: two such machines would be one."""
    assert product_uuid(text) is None


def test_without_firmware_the_machine_id_is_hashed(files: Files) -> None:
    """machine-id is confidential, so it is not the id; the source says that clones of an image share it."""
    files.put("sys/class/dmi/id/product_uuid", "Not Settable").put("etc/machine-id", "3d1219c7c4c5404aaa1f6d2a48adfda4")
    found, source = files.id()
    assert source == "machine_id"
    assert "3d1219c7" not in found
    assert found == files.id()[0]
    files.put("etc/machine-id", "4" * 32)
    assert files.id()[0] != found


@pytest.mark.parametrize("machine_id", [None, "", "uninitialized"])
def test_a_machine_that_nothing_identifies_is_asked_about(files: Files, machine_id: str | None) -> None:
    """The text names the key to set."""
    if machine_id is not None:
        files.put("etc/machine-id", machine_id)
    with pytest.raises(NoIdentity, match=r"set agent\.node_id"):
        files.who()


def test_no_boot_id_is_no_linux(tmp_path: Path) -> None:
    """Counters cannot be compared without it."""
    with pytest.raises(NoIdentity, match="boot_id"):
        resolve(cluster="c", state_dir=tmp_path, node_id="x", roots=Roots(proc=tmp_path))


def test_this_machine_is_the_same_twice(tmp_path: Path) -> None:
    """Live: some id, a boot id and a name."""
    machine = resolve(cluster="c", state_dir=tmp_path)
    assert machine == resolve(cluster="c", state_dir=tmp_path)
    assert machine.node_id
    assert machine.node
    assert len(machine.boot_id) == 36
