"""What ``graynode up`` sets up on a GPU node and elsewhere."""

from pathlib import Path

import pytest

from graynode.service.up_config import prepare


@pytest.mark.parametrize(("gpu", "source"), [(True, "nvml"), (False, "simulated")])
def test_a_gpu_node_is_collected_and_elsewhere_a_fleet_is_simulated(tmp_path: Path, gpu: bool, source: str) -> None:
    """NVIDIA's driver decides; the configuration loads, and a past is written only for the simulated fleet."""
    driver = tmp_path / "version"
    if gpu:
        driver.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module")
    demo = prepare(tmp_path / "data", nodes=3, seed=1, faults=None, driver=driver)
    assert demo.config.agent.collectors == ("host", "kernel_log", "infiniband", source)
    assert demo.history_wanted is not gpu
    assert (tmp_path / "data" / "webhook.secret").stat().st_mode & 0o077 == 0


def test_a_folder_is_taken_up_with_the_fleet_it_was_made_with(tmp_path: Path) -> None:
    """The secret, the port and the simulated fleet stay once the past is whole; until then all is made anew."""
    absent = tmp_path / "none"
    first = prepare(tmp_path / "data", nodes=3, seed=1, faults=None, driver=absent)
    again = prepare(tmp_path / "data", nodes=3, seed=1, faults=None, driver=absent)
    assert again.secret != first.secret
    again.history_done.touch()
    kept = prepare(tmp_path / "data", nodes=5, seed=9, faults=None, driver=absent)
    assert (kept.secret, kept.receiver_port, kept.nodes) == (again.secret, again.receiver_port, 3)
    assert not kept.history_wanted
