"""``graynode init``: plans, makes, never overwrites; and the lake's way forward by command."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import deltalake
import polars as pl
import pytest

from graynode.pipeline.lake import Lake
from graynode.pipeline.lake_format import VERSION_KEY, frame_schema, to_lake
from graynode.pipeline.schema import TABLES, VERSION
from graynode.service import init, init_asked, lake_migrate
from graynode.service.config import Config, ConfigError, load, parse
from graynode.service.init import Asked
from graynode.service.init_steps import Step, carry_out, folder_steps, make_folder, user_steps

NOW = datetime(2026, 11, 30, tzinfo=UTC)
GRAYNODE = Path(sys.executable).with_name("graynode")


def graynode(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the installed command."""
    return subprocess.run(
        [str(GRAYNODE), *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": "/usr/bin:/bin", **env},
    )


def at(folder: Path, role: str = "all", **more: Any) -> tuple[Asked, Config]:
    """A question about a configuration whose places all lie in the folder."""
    file = folder / "etc" / "graynode.toml"
    asked = Asked(path=file, role=role, **more)  # type: ignore[arg-type]
    said: dict[str, Any] = {
        "agent": {"state_dir": str(folder / "state")}, "bus": {"spool_dir": str(folder / "var" / "bus")},
        "lake": {"path": str(folder / "lake")}, "serve": {"tokens_file": str(folder / "keys" / "tokens.json")},
    }  # fmt: skip
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = [f"[{table}]\n" + "".join(f'{k} = "{v}"\n' for k, v in keys.items()) for table, keys in said.items()]
        file.write_text("".join(lines))
    return asked, parse(said, "test")


def told(asked: Asked) -> tuple[int, str]:
    """Code and text of a run."""
    lines: list[str] = []
    code = init.run(asked, say=lines.append, clock=lambda: NOW, owner=lambda: (os.getuid(), os.getgid()))
    return code, "\n".join(lines)


def test_plan_changes_nothing(tmp_path: Path) -> None:
    """Without --yes every folder and table is named, and none is made."""
    asked, _ = at(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    code, text = told(asked)
    assert code == 0
    assert f"{len(TABLES)} of {len(TABLES)} tables" in text
    assert "Nothing was changed; with --yes it is done." in text
    assert sorted(tmp_path.rglob("*")) == before


def test_twice_is_as_good_as_once(tmp_path: Path) -> None:
    """The first time everything is made, with modes; the second time all is well and nothing changes."""
    asked, config = at(tmp_path, yes=True)
    code, text = told(asked)
    assert code == 0, text
    for folder in (config.agent.state_dir, config.bus.spool_dir, tmp_path / "keys", tmp_path / "lake"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o750, folder
    assert stat.S_IMODE((tmp_path / "var").stat().st_mode) == 0o755
    assert all(Lake(str(tmp_path / "lake")).exists(name) for name in TABLES)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    code, text = told(asked)
    assert (code, "All well." in text, "made" in text) == (0, True, False)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_configuration_is_written_once_and_never_over(tmp_path: Path) -> None:
    """A new file parses to the choices; a second run with other choices is refused; --force keeps the old one."""
    file = tmp_path / "new" / "g.toml"
    places = {"agent.state_dir": str(tmp_path / "s"), "bus.spool_dir": str(tmp_path / "b")}
    first = Asked(path=file, role="agent", chosen={"cluster": "alpha", **places}, yes=True)
    told(first)
    text = file.read_text()
    assert load(file, env={}).cluster == "alpha"
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    with pytest.raises(ConfigError, match=r"says cluster = 'alpha', not 'beta'.*--force"):
        told(Asked(path=file, role="agent", chosen={"cluster": "beta"}, yes=True))
    assert file.read_text() == text
    again = {"cluster": "beta", **places}
    told(Asked(path=file, role="agent", chosen=again, yes=True, force=True))
    assert load(file, env={}).cluster == "beta"
    assert (file.parent / "g.toml.before-20261130T000000Z").read_text() == text
    assert sorted(p.name for p in file.parent.iterdir()) == ["g.toml", "g.toml.before-20261130T000000Z"]


def test_an_agent_has_no_lake(tmp_path: Path) -> None:
    """Nothing of the server is planned on a node, and asking for it is said to be wrong."""
    asked, _ = at(tmp_path, role="agent")
    _, text = told(asked)
    assert "tables" not in text
    with pytest.raises(ConfigError, match="an agent knows no lake"):
        init_asked.run({"role": "agent", "chosen": {"lake.path": "/x"}})
    with pytest.raises(ConfigError, match="written as User:gray"):
        init_asked.run({"agent_user": "gray"})


def test_a_broker_that_is_away_is_a_persons(tmp_path: Path) -> None:
    """The rest is made; the topics are left with the way out, and the code says so."""
    places = {"agent.state_dir": str(tmp_path / "s"), "serve.tokens_file": str(tmp_path / "k" / "t.json")}
    chosen = {"bus.kind": "kafka", "bus.kafka.bootstrap": "127.0.0.1:1", "lake.path": str(tmp_path / "l")} | places
    code, text = told(Asked(path=tmp_path / "g.toml", chosen=chosen, yes=True))
    assert code == 1
    assert "HAND  broker" in text
    assert "then this again" in text
    assert (tmp_path / "l" / "gpu").is_dir()


def test_one_failure_does_not_keep_the_rest(tmp_path: Path) -> None:
    """A folder that cannot be made is told with its reason; the next one is made."""
    (tmp_path / "file").touch()

    def fails() -> None:
        make_folder(tmp_path / "file" / "below")

    steps = [Step("a", "make", "x", do=fails), Step("b", "make", "y", do=lambda: make_folder(tmp_path / "good"))]
    first, second = carry_out(steps)
    assert first.failed
    assert "Not a directory" in first.said
    assert not second.failed
    assert (tmp_path / "good").is_dir()


def test_what_is_in_the_way_is_a_persons(tmp_path: Path) -> None:
    """A file where a folder belongs is named, never removed."""
    (tmp_path / "state").touch()
    _, config = at(tmp_path)
    (found,) = [step for step in folder_steps(config, "agent") if "agent.state_dir" in step.said]
    assert (found.state, found.way_out) == ("hand", "name another")


def test_missing_user_is_told() -> None:
    """As root without the units' user: the line that makes it. Others are not asked for it."""
    (said,) = user_steps(None, root=True)
    assert "useradd --system" in said.way_out
    assert list(user_steps(None, root=False)) == []


def test_commands_as_a_person_has_them(tmp_path: Path) -> None:
    """init and lake migrate by the installed program: codes, text, no traceback."""
    file = tmp_path / "g.toml"
    planned = graynode("init", "--config", str(file), "--lake", str(tmp_path / "lake"), "--kafka", "127.0.0.1:1")
    assert planned.returncode == 1, planned.stderr
    assert "HAND" in planned.stdout
    assert not file.exists()
    wrong = graynode("init", "--config", str(file), "--kafka", "nonsense")
    assert wrong.returncode == 1
    assert "is not host:port" in wrong.stdout
    assert "Traceback" not in planned.stderr + wrong.stderr


def test_a_node_needs_no_library_of_the_server(tmp_path: Path) -> None:
    """On the base install, where these packages are absent, an agent's init and doctor work as they are."""
    absent = ("polars", "deltalake", "duckdb", "numpy", "sklearn", "scipy", "litestar", "jinja2", "altair", "rich")
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({absent!r}))\n"
        "from graynode.service.cli import main\nsys.argv = ['graynode', *sys.argv[1:]]\nmain()"
    )
    words = [sys.executable, "-I", "-c", code, "init", "--role", "agent", "--config", str(tmp_path / "g.toml")]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert ended.stderr == ""
    assert "every key with its meaning" in ended.stdout


# --- lake migrate ----------------------------------------------------------------------------------------------


def _old(folder: Path, version: str = "0.3") -> Config:
    data = to_lake(
        "host",
        pl.DataFrame({"ts": [datetime(2026, 1, 1, tzinfo=UTC)]}, schema_overrides=frame_schema("host")).pipe(
            _conformed
        ),
    )
    deltalake.write_deltalake(str(folder / "host"), data.drop_columns(["hour"]), partition_by=["date"])
    delta = deltalake.DeltaTable(str(folder / "host"))
    delta.alter.set_table_properties({VERSION_KEY: version}, raise_if_not_exists=False)
    return parse({"lake": {"path": str(folder)}}, "test")


def _conformed(frame: pl.DataFrame) -> pl.DataFrame:
    from graynode.pipeline.lake_format import conform

    return conform("host", frame.with_columns(pl.col("ts").cast(pl.Datetime("us", "UTC"))))


def test_lake_migrate_shows_then_acts(tmp_path: Path) -> None:
    """First what is due, with code 1; with --yes it is done; then there is nothing to do."""
    config = _old(tmp_path)
    lines: list[str] = []
    assert lake_migrate.run(config, yes=False, say=lines.append) == 1
    assert "its folders are named by date, today by date, hour" in lines[0]
    assert lake_migrate.run(config, yes=True, say=lines.append) == 0
    assert lines[-1] == "1 tables were brought forward."
    assert lake_migrate.run(config, yes=True, say=lines.append) == 0
    assert lines[-1].endswith("nothing to do.")


def test_lake_migrate_of_no_lake_says_so(tmp_path: Path) -> None:
    """A mistyped path is not told as a lake that is well."""
    lines: list[str] = []
    config = parse({"lake": {"path": str(tmp_path / "none")}}, "test")
    assert lake_migrate.run(config, yes=False, say=lines.append) == 0
    assert lines == [f"No table is in {tmp_path / 'none'} (yet): nothing to bring forward; --lake names another."]


def test_lake_migrate_keeps_off(tmp_path: Path) -> None:
    """While a pipeline holds the maintenance, or from a newer lake: said, and nothing is touched."""
    from graynode.pipeline.maintenance_lock import maintenance_lock

    config = _old(tmp_path)
    lock = maintenance_lock(Lake(str(tmp_path)))
    lock.take()
    with pytest.raises(ConfigError, match="a pipeline works on this lake"):
        lake_migrate.run(config, yes=True, say=lambda line: None)
    lock.release()
    newer = _old(tmp_path / "newer", f"{VERSION[0] + 1}.0")
    with pytest.raises(ConfigError, match="update graynode"):
        lake_migrate.run(newer, yes=True, say=lambda line: None)


def test_pipeline_does_not_start_on_an_older_layout(tmp_path: Path) -> None:
    """It ends with code 1 and the command that helps; no row and no table is added."""
    _old(tmp_path / "lake")
    file = tmp_path / "g.toml"
    file.write_text(
        f'[lake]\npath = "{tmp_path}/lake"\n[bus]\nspool_dir = "{tmp_path}/bus"\n[pipeline]\nmetrics_listen = ""\n'
    )
    ended = graynode("pipeline", "--config", str(file))
    assert ended.returncode == 1
    assert "graynode lake migrate --yes" in ended.stderr
    assert sorted(p.name for p in (tmp_path / "lake").iterdir()) == ["host"]
