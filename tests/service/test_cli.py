"""The command line as a person meets it."""

import subprocess
import sys
from pathlib import Path

import pytest

GRAYNODE = Path(sys.executable).with_name("graynode")


def graynode(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the installed command."""
    return subprocess.run(
        [str(GRAYNODE), *words], capture_output=True, text=True, timeout=60, env={"PATH": "/usr/bin:/bin", **env}
    )


def test_no_command_shows_them_all() -> None:
    """Without a command the list of commands is shown."""
    shown = graynode()
    for command in ("up", "agent", "pipeline", "detect", "respond", "simulate", "import", "sql", "explain", "doctor"):
        assert f"  {command} " in shown.stdout + shown.stderr


@pytest.mark.parametrize("role", ["agent", "pipeline", "detect", "respond", "serve"])
def test_wrong_configuration_stops_every_role(role: str, tmp_path: Path) -> None:
    """A wrong key ends the start with code 2, key and hint, and no traceback."""
    file = tmp_path / "g.toml"
    file.write_text("[agent]\nbach_s = 1\n")
    ended = graynode(role, "--config", str(file))
    assert ended.returncode == 2
    assert "agent.bach_s" in ended.stderr
    assert "batch_s" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_config_check_prints_what_is_in_force(tmp_path: Path) -> None:
    """``config check`` shows defaults and overrides, and fails where a folder cannot be written."""
    file = tmp_path / "g.toml"
    file.write_text(f'[lake]\npath = "{tmp_path}/lake"\n[bus]\nspool_dir = "{tmp_path}/bus"\n')
    shown = graynode("config", "check", "--config", str(file), GRAYNODE_AGENT__STATE_DIR=f"{tmp_path}/state")
    assert shown.returncode == 0, shown.stderr
    assert f'"{tmp_path}/state"' in shown.stdout
    assert graynode("config", "check", "--config", str(file), GRAYNODE_LAKE__PATH=f"{file}/lake").returncode == 1


def test_version() -> None:
    """The version is one line."""
    assert graynode("version").stdout.startswith("graynode 0.")
