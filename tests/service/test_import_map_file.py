"""The map of an import: what is wrong in it is said in one line, before a row is read."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from graynode.service.config import Config, ConfigError
from graynode.service.config_tables import LakeSection
from graynode.service.importing import run

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
GPU = """
table = "gpu"
step_s = 60
column.ts = { from = "t", format = "epoch_s" }
column.node = { from = "host" }
column.gpu_uuid = { from = "gpu" }
column.power_w = { from = "p", unit = "mW" }
"""


def _import(tmp_path: Path, map_: str, data: str) -> int:
    (tmp_path / "map.toml").write_text(map_)
    (tmp_path / "data.csv").write_text(data)
    config = Config(cluster="c", lake=LakeSection(path=str(tmp_path / "lake")))
    return run(config, "csv", tmp_path / "data.csv", map_path=tmp_path / "map.toml", now=NOW)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("table", "tabel"), ("map.toml", "tabel")),
        (('"gpu"\nstep', '"gpus"\nstep'), ("table", "gpus")),
        (("step_s = 60", 'step_s = "x"'), ("step_s",)),
        (("column.power_w", "column.power"), ("column.power:", "no such field", "power_w")),
        (("mW", "mw"), ("column.power_w.unit", "'mw'", "mW, kW")),
        (('unit = "mW"', "scale = 0"), ("column.power_w.scale",)),
        (('unit = "mW"', 'unit = "mW", scale = 2'), ("column.power_w", "exclude each other")),
        (('unit = "mW"', 'untit = "mW"'), ("column.power_w", "untit")),
        (('unit = "mW"', "nulls = 3"), ("column.power_w.nulls",)),
        (('unit = "mW"', 'values = { a = "b" }'), ("column.power_w.values.a", "'b' is no float32")),
        (('unit = "mW"', 'format = "epoch_s"'), ("column.power_w", "a time's")),
        (('"epoch_s"', '"epoch"'), ("column.ts.format", "'epoch'", "iso8601")),
        (('"epoch_s"', '"epoch_s", zone = "Mars"'), ("column.ts.zone", "Mars")),
        (("column.ts = {", "#"), ("column.ts: is missing",)),
        (("column.node = {", "column.gpu_model = {"), ()),
        (("column.gpu_uuid = {", "column.job_id = {"), ("column.gpu_uuid: is missing",)),
        (("column.node =", "column.cluster ="), ("column.cluster", "configuration's")),
        (('from = "host"', 'from = ["host", "gpu"]'), ("column.node.from", "attributes")),
        (("step_s = 60", "constant.pstate = 'x'"), ("constant.pstate", "no int32")),
        (("step_s = 60", "constant.power_w = 3"), ("constant.power_w", "one of them must go")),
        (("step_s = 60", "csv.separator = ';;'"), ("csv.separator", "one ASCII character")),
        (("table =", "table = ="), ("not TOML",)),
        (('from = "p"', 'from = "watts"'), ("column.power_w.from", "'watts' is none of its columns: t, host, gpu, p")),
    ],
)
def test_a_wrong_map(tmp_path: Path, change: tuple[str, str], said: tuple[str, ...]) -> None:
    """One line names the file, the key and what is allowed; nothing is stored."""
    wrong = GPU.replace(*change, 1)
    data = "t,host,gpu,p\n1782900000,h,GPU-1,1\n"
    if not said:  # a machine by its GPU is enough
        assert _import(tmp_path, wrong, data) == 0
        return
    with pytest.raises(ConfigError) as error:
        _import(tmp_path, wrong, data)
    text = str(error.value)
    assert "\n" not in text.strip() or "TOML" in text
    for part in said:
        assert part in text
    assert not (tmp_path / "lake").exists()


def test_the_map_that_is_not_there(tmp_path: Path) -> None:
    """No map, no such file, a folder, binary: each is said."""
    config = Config(lake=LakeSection(path=str(tmp_path / "lake")))
    (tmp_path / "binary").write_bytes(b"\xff\x00\xfe")
    cases = {None: "needs --map", tmp_path / "no": "cannot be read", tmp_path: "cannot be read"}
    for path, said in {**cases, tmp_path / "binary": "not TOML"}.items():
        with pytest.raises(ConfigError, match=said):
            run(config, "csv", tmp_path / "x.csv", map_path=path)
