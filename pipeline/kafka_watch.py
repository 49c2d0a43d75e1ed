"""Whether a group's partitions are being read at all, asked of the broker and not of the client.

kafka-python's leader of a group compares the metadata of its assignment with the newest to learn that it must assign
again. When a topic becomes known just while it assigns, the two are the same and the assignment is empty: it waits for
ever without an error (once in some thirty starts beside a broker that comes up and topics that are being made). Seen
from the broker that is plain: there are partitions, and no member of the group holds them.
"""

from __future__ import annotations

from collections.abc import Sequence

from graynode.pipeline.bus import Partition
from graynode.pipeline.kafka_client import connected
from graynode.pipeline.kafka_settings import KafkaSettings


def unread(settings: KafkaSettings, topics: Sequence[str], group: str) -> frozenset[Partition]:
    """Partitions of ``topics`` that exist and that no member of ``group`` holds; none while the group rebalances.

    Makes a client of its own, and closes it. Raises what kafka-python raises.
    """
    from kafka import KafkaAdminClient

    admin = connected(KafkaAdminClient, settings)
    try:
        described = admin.describe_groups([group])[group]
        if "Rebalance" in described["group_state"]:
            return frozenset()
        there = {
            Partition(topic["name"], partition["partition_index"])
            for topic in admin.describe_topics(list(topics))
            if not topic["error_code"]
            for partition in topic["partitions"]
        }
    finally:
        admin.close()
    return frozenset(there - _held(described["members"]))


def _held(members: Sequence[dict[str, object]]) -> set[Partition]:
    held = set()
    for member in members:
        assignment = member["member_assignment"]
        for topic in assignment.get("assigned_partitions", ()) if isinstance(assignment, dict) else ():
            held |= {Partition(topic["topic"], number) for number in topic["partitions"]}
    return held
