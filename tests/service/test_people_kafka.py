"""What people say, through a real broker: it lands, and the receivers' side hears it."""

from __future__ import annotations

import time
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from people_site import NOW, Site
from roles import to_toml

from graynode.pipeline.deadletter import DeadLetters
from graynode.pipeline.kafka import KafkaBus, KafkaSettings
from graynode.pipeline.land import Landing
from graynode.pipeline.spool_writer import SpoolProducer
from graynode.service import labels, people
from graynode.service.config import load
from graynode.service.pipeline import TOPICS
from graynode.service.quiet import Quiet
from graynode.service.wiring import make_bus

pytestmark = pytest.mark.kafka

INCIDENT = "bbbb1111-0000-5000-8000-000000000001"


class KafkaSite(Site):
    """The same site with a broker between the command line and the lake, in a cluster of its own."""

    def __init__(self, folder: Path, address: str) -> None:
        super().__init__(folder)
        self.cluster = f"people-{time.time_ns()}"
        settings = {
            "cluster": self.cluster,
            "agent": {"state_dir": str(folder / "state")},
            "bus": {"kind": "kafka", "kafka": {"bootstrap": address, "partitions": 2}},
            "lake": {"path": str(folder / "lake")},
        }
        self.file.write_text(to_toml(settings))
        self.config = load(self.file, env={})
        KafkaBus(KafkaSettings(bootstrap=address)).create_topics(2, 1)

    def land(self) -> None:
        dead = SpoolProducer(self.folder / "dead", 1 << 20)
        landing = Landing(self.lake, DeadLetters(dead))
        with closing(make_bus(self.config).consumer(TOPICS, f"land-{self.cluster}", landing.assigned)) as consumer:
            end = time.monotonic() + 60
            while time.monotonic() < end and not self._whole():
                landing.take(consumer.poll(0.5))
                landing.commit(consumer.end_offsets(), everything=True)
        dead.close()

    def _whole(self) -> bool:
        return all(self.lake.exists(table) and self.lake.files(table) for table in ("label", "ack", "mute", "repair"))


def test_label_ack_mute_and_repair_by_kafka(tmp_path: Path, kafka_address: str) -> None:
    """Each is said by the command's own way, lands as one row with its words, and what receivers ask hears the mute and
    the ack."""
    site = KafkaSite(tmp_path, kafka_address)
    row = {
        "ts": NOW, "cluster": site.cluster, "node_id": "id-n1", "node": "n1", "incident_id": INCIDENT, "revision": 0,
        "state": "open", "subject": "node", "cause": "slow_gpu", "severity": "page", "title": "Slow GPU on n1",
        "since": NOW, "opened_ts": NOW, "updated_ts": NOW,
    }  # fmt: skip
    site.write("incident", [row])
    labels.label(site.config, "bbbb", "true", why="seen", by="Kim")
    labels.ack(site.config, "bbbb", why="on it", by="Kim")
    labels.mute(site.config, "n1", for_="2h", why="tests", by="Kim")
    labels.repair(site.config, "n1", what="gpu", by="Kim")
    site.land()
    words_of = {
        "label": {"verdict": "true", "why": "seen"},
        "ack": {"why": "on it"},
        "mute": {"why": "tests"},
        "repair": {"what": "gpu"},
    }
    for table, words in words_of.items():
        found = people.ask(site.config, f"SELECT * FROM {table} WHERE cluster = '{site.cluster}'")
        assert [{k: r[k] for k in words} for r in found] == [words], table
        assert found[0]["who"] == "Kim"
        assert found[0]["node_id"] == "id-n1"
    with closing(Quiet(make_bus(site.config), f"quiet-{site.cluster}")) as quiet:
        until = found[0]["logged_ts"]
        assert "by Kim" in quiet.because(row, until)
        other = {**row, "node_id": "id-n2", "state": "updated"}
        quiet.told({**other, "state": "open"})
        assert quiet.because(other, until + timedelta(hours=3)) == "taken by Kim"
