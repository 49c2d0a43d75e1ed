"""From configuration to parts: the only place that picks implementations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graynode.pipeline.bus import Bus
from graynode.service.config import Config

if TYPE_CHECKING:
    from graynode.pipeline.kafka_settings import KafkaSettings
    from graynode.pipeline.lake import Lake


def make_bus(config: Config) -> Bus:
    """The bus that the configuration names; its libraries are imported only then."""
    if config.bus.kind == "spool":
        from graynode.pipeline.spool import SpoolBus

        return SpoolBus(config.bus.spool_dir, config.bus.spool_max_bytes)
    from graynode.pipeline.kafka import KafkaBus

    return KafkaBus(kafka_settings(config))


def kafka_settings(config: Config) -> KafkaSettings:
    """How the configuration's broker is reached."""
    from graynode.pipeline.kafka_settings import KafkaSettings

    k = config.bus.kafka
    return KafkaSettings(
        bootstrap=k.bootstrap,
        security=k.security,
        ca_file=k.ca_file,
        cert_file=k.cert_file,
        key_file=k.key_file,
        mechanism=k.mechanism,
        user=k.user,
        password_file=k.password_file,
        connect_timeout_s=k.connect_timeout_s,
    )


def make_lake(config: Config) -> Lake:
    """The lake that the configuration names."""
    from graynode.pipeline.lake import Lake

    return Lake(config.lake.path, config.lake.storage_options)
