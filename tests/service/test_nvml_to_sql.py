"""What NVML gives, from the library to SQL with real processes: links, instances, a planned release."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nvml_rig
import nvml_standin
import pytest
from roles import Roles

from graynode.pipeline.lake import Lake
from graynode.pipeline.queries import Queries
from graynode.pipeline.schema import DEADLETTER
from graynode.pipeline.spool_reader import TopicReader
from graynode.service import release
from graynode.service.config import load


def ask(folder: Path, sql: str) -> list[dict[str, Any]]:
    """Ask the lake of this run."""
    queries = Queries(Lake(str(folder / "lake")))
    try:
        return queries.rows(sql)
    finally:
        queries.close()


@pytest.mark.long
@pytest.mark.nvml
def test_links_instances_and_a_release_in_sql(tmp_path: Path) -> None:
    """Rows of single links and of MIG instances, the ports' far ends, a domain, and a release as planned blindness."""
    scenario = nvml_standin.gb200(tmp_path / "scenario", gpus=2)
    nvml_standin.mig(scenario, gpu=1)
    env = nvml_standin.build(nvml_rig.CACHE).env(scenario.path)
    with Roles(tmp_path, {"agent": {"collectors": ["nvml", "host"], "batch_s": 0.5}}, env) as roles:
        roles.start("agent")
        roles.start("pipeline")
        links = "SELECT link, state, rx_errors, symbol_ber_ratio FROM link WHERE link_kind = 'nvlink' AND rx_errors = 0"
        rows = roles.until(lambda: ask(tmp_path, links), 90)
        assert rows[0]["state"] == "active"
        assert rows[0]["symbol_ber_ratio"] == pytest.approx(15e-255)
        parts = ask(tmp_path, "SELECT DISTINCT mig_instance, mig_profile FROM gpu WHERE mig_instance IS NOT NULL")
        assert {(r["mig_instance"], r["mig_profile"]) for r in parts} == {("1", "3g.40gb"), ("2", "4g.40gb")}
        ports = ask(tmp_path, "SELECT model, attributes FROM inventory WHERE kind = 'port' AND model = 'NVLink 5.0'")
        assert len(ports) == 36
        domains = ask(tmp_path, "SELECT DISTINCT domain FROM inventory WHERE kind = 'gpu'")
        assert domains == [{"domain": "c7" * 16 + ".3"}]

        config = load(roles.config, env={})
        assert release.release(config, "10m", "mig change") == 0
        assert release.resume(config) == 0
        spell = "SELECT DISTINCT planned, state FROM quality_spells WHERE field = '*' AND state <> 'measured'"
        assert roles.until(lambda: ask(tmp_path, spell)) == [{"planned": True, "state": "paused"}]
        back = "SELECT 1 FROM quality_spells WHERE field = '*' AND state = 'paused' AND until IS NOT NULL"
        assert len(roles.until(lambda: len(ask(tmp_path, back)) == 2 and ask(tmp_path, back))) == 2
        assert roles.stop("agent") == 0
        assert roles.stop("pipeline") == 0
    reader = TopicReader(tmp_path / "bus", DEADLETTER, "looking")
    reader.seek(0)
    assert reader.take(1000, 1 << 26) == []
    reader.close()
