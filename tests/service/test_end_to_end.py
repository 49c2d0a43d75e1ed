"""The main job with real processes: from a node's own sources to rows in SQL and to a signed webhook."""

import base64
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from roles import Roles

from graynode.pipeline.lake import Lake
from graynode.pipeline.queries import Queries
from graynode.service.receiver import Receiver

pytestmark = pytest.mark.early
SECRET = "whsec_" + base64.b64encode(b"graynode-end-to-end-test").decode()
XID79 = "NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def ask(folder: Path, sql: str) -> list[dict[str, Any]]:
    queries = Queries(Lake(str(folder / "lake")))
    try:
        return queries.rows(sql)
    finally:
        queries.close()


def kmsg_line(sequence: int, text: str) -> str:
    now_us = int(time.clock_gettime(time.CLOCK_MONOTONIC) * 1e6)
    return f"3,{sequence},{now_us},-;{text}\n"


@pytest.mark.kafka
def test_this_machine_live_through_kafka_to_sql(tmp_path: Path, kafka_address: str) -> None:
    """/proc, the network ports and the kernel log of this machine arrive in SQL through a real broker."""
    log = tmp_path / "kmsg"
    log.write_text(kmsg_line(1, XID79))
    settings = {
        "cluster": f"live{time.time_ns()}",
        "agent": {"collectors": ["host", "infiniband", "kernel_log"], "kmsg": str(log)},
        "bus": {"kind": "kafka", "kafka": {"bootstrap": kafka_address}},
        "pipeline": {"group": f"p{time.time_ns()}"},
    }
    with Roles(tmp_path, settings) as roles:
        roles.start("agent")
        roles.start("pipeline")
        own = f"cluster = '{settings['cluster']}'"
        roles.until(lambda: ask(tmp_path, f"SELECT 1 FROM host WHERE {own} AND cpu_util_percent IS NOT NULL"), 90)
        host = ask(tmp_path, f"SELECT * FROM host WHERE {own} ORDER BY ts")[-1]
        assert host["mem_total_bytes"] is None or host["mem_total_bytes"] > 0
        assert host["mem_available_bytes"] > 0
        assert abs((datetime.now(UTC) - host["ts"]).total_seconds()) < 60
        event = roles.until(lambda: ask(tmp_path, f"SELECT * FROM event WHERE {own} AND kind = 'xid'"))[0]
        assert (event["code"], event["pci_bus_id"]) == (79, "0000:9b:00.0")
        assert event["node_id"] == host["node_id"]
        ports = {path.parent.name for path in Path("/sys/class/net").glob("*/device")}
        if ports:
            states = f"SELECT DISTINCT link FROM link WHERE {own} AND state <> 'unknown'"
            roles.until(lambda: {row["link"] for row in ask(tmp_path, states)} >= ports)
        assert roles.stop("agent") == 0
        assert roles.stop("pipeline") == 0
    ask(tmp_path, "SELECT count(*) FROM host")


def test_kernel_line_to_signed_webhook_without_the_lake(tmp_path: Path) -> None:
    """An Xid 79 line is a signed webhook that names the GPU within ten seconds, with no pipeline running at all."""
    log = tmp_path / "kmsg"
    log.write_text("")
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    receiver = Receiver(SECRET)
    receiver.start()
    settings = {
        "agent": {"collectors": ["host", "kernel_log"], "kmsg": str(log), "batch_s": 5},
        "respond": {"webhooks": {"ops": {"url": receiver.url, "secret_file": str(secret)}}},
    }
    try:
        with Roles(tmp_path, settings) as roles:
            for role in ("agent", "detect", "respond"):
                roles.start(role)
            roles.until(lambda: list((tmp_path / "bus").glob("graynode.samples/*")))
            time.sleep(5)
            written = time.monotonic()
            with log.open("a") as file:
                file.write(kmsg_line(7, XID79))
            roles.until(lambda: not receiver.incidents.empty(), 30)
            took_s = time.monotonic() - written
            incident = receiver.incidents.get()
            assert incident["cause"] == "gpu_lost"
            assert incident["pci_bus_id"] == "0000:9b:00.0"
            assert incident["severity"] == "page"
            assert took_s <= 10
            assert {roles.stop(role) for role in ("agent", "detect", "respond")} == {0}
    finally:
        receiver.close()
    assert receiver.refused == 0
