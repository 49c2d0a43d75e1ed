"""What ``graynode up`` sets up on a GPU node and elsewhere."""

import io
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

from graynode.collectors.identity import Roots
from graynode.service.tokens import Tokens
from graynode.service.up_config import prepare
from graynode.service.up_summary import say_link


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


def test_the_link_opens_the_pages_of_this_run_and_the_next(tmp_path: Path) -> None:
    """The token may act, is kept where others cannot read it, and is made anew where its hash is gone; a folder that an
    earlier version made gets the table ``[serve]``."""
    absent = tmp_path / "none"
    first = prepare(tmp_path / "data", nodes=3, seed=1, faults=None, driver=absent)
    first.history_done.touch()
    tokens = Tokens(first.config.serve.tokens_file)
    assert first.link == f"http://{first.config.serve.listen}/#token={first.token}"
    shown = io.StringIO()
    say_link(Console(file=shown, width=60), first)
    assert shown.getvalue().split()[-1] == first.link  # whole, also where the terminal is narrow
    found = tokens.find(first.token, datetime.now(UTC))
    assert found is not None
    assert found.scope == "act"
    assert (tmp_path / "data" / "serve.token").stat().st_mode & 0o077 == 0
    assert prepare(tmp_path / "data", nodes=3, seed=1, faults=None, driver=absent).link == first.link
    tokens.path.unlink()
    text = first.config_file.read_text()
    first.config_file.write_text(text[: text.index("[serve]")])
    later = prepare(tmp_path / "data", nodes=3, seed=1, faults=None, driver=absent)
    assert later.token != first.token
    assert Tokens(later.config.serve.tokens_file).find(later.token, datetime.now(UTC))


def test_a_machine_that_nothing_identifies_gets_an_id_that_stays(tmp_path: Path) -> None:
    """A container without machine-id; one that has an identity keeps its own."""
    (tmp_path / "proc/sys/kernel/random").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/random/boot_id").write_text("b1\n")
    roots = Roots(*(tmp_path / name for name in ("proc", "sys", "dev", "etc", "run", "var")))
    absent = tmp_path / "none"
    made = prepare(tmp_path / "data", nodes=3, seed=1, faults=None, driver=absent, roots=roots)
    assert made.config.agent.node_id
    made.history_done.touch()
    kept = prepare(tmp_path / "data", nodes=3, seed=1, faults=None, driver=absent, roots=roots)
    assert kept.config.agent.node_id == made.config.agent.node_id
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/machine-id").write_text("0123456789abcdef0123456789abcdef\n")
    other = prepare(tmp_path / "other", nodes=3, seed=1, faults=None, driver=absent, roots=roots)
    assert other.config.agent.node_id == ""
