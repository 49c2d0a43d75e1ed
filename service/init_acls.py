"""What the roles may do at a broker that has an authorizer: the least that each needs, asked for and given.

Agents write samples and events and read nothing. The server's roles read and write the topics of ours, as groups of
ours. People who ack, mute and label do so with the server's configuration, so as the server.
"""

# ruff: noqa: ANN401 (kafka-python has no types)
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from graynode.pipeline.bus import BusRefused, BusUnavailable
from graynode.pipeline.kafka_settings import KafkaSettings
from graynode.pipeline.schema import EVENTS, SAMPLES
from graynode.service.init_steps import Step
from graynode.service.init_topics import admin, seen

PREFIX: Final = "graynode."
GROUPS: Final = "graynode-"
"""Topics and consumer groups of ours begin so."""


@dataclass(frozen=True, slots=True)
class Right:
    """One right of one user, in the broker's words."""

    user: str
    operation: str
    kind: str
    name: str
    pattern: str = "LITERAL"

    def command(self) -> str:
        """The option of ``kafka-acls.sh`` that gives it, for whoever may."""
        where = f"--{self.kind.lower()} {self.name}"
        return (
            f"kafka-acls.sh --add --allow-principal {self.user} --operation {self.operation.title()} {where}"
            f" --resource-pattern-type {self.pattern.lower()}"
        )


def rights(agent: str, server: str) -> list[Right]:
    """What both need; users as the broker names them (``User:graynode``); an empty one is left out."""
    found = [
        Right(agent, operation, "TOPIC", topic)
        for topic in (SAMPLES, EVENTS)
        for operation in ("WRITE", "DESCRIBE")
        if agent
    ]
    if server:
        topics = ("READ", "WRITE", "DESCRIBE", "DESCRIBE_CONFIGS")
        found += [Right(server, operation, "TOPIC", PREFIX, "PREFIXED") for operation in topics]
        found += [Right(server, operation, "GROUP", GROUPS, "PREFIXED") for operation in ("READ", "DESCRIBE")]
    return found


def acl_steps(settings: KafkaSettings, agent: str, server: str) -> Iterator[Step]:
    """Rights that are there, and those to be given. A broker without an authorizer has none to give."""
    from kafka.errors import SecurityDisabledError

    wanted = rights(agent, server)
    try:
        with admin(settings, "describe rights") as client:
            try:
                there = _there(client)
            except SecurityDisabledError:
                yield Step("rights", "well", "the broker has no authorizer: everybody may do everything")
                return
    except BusUnavailable:
        return  # the topics have said it
    except BusRefused as error:
        commands = "; ".join(right.command() for right in wanted)
        way = f"give this user ALTER and DESCRIBE on the cluster, or have its owner say: {commands}"
        yield Step("rights", "hand", f"this user may not see or give rights ({error})", way)
        return
    if not wanted:
        way = "name them: --agent-user User:NAME --server-user User:NAME"
        yield Step("rights", "hand", "the broker has an authorizer, and no user of ours is known", way)
        return
    missing = [right for right in wanted if right not in there]
    if missing:
        yield Step("rights", "make", "; ".join(map(_said, missing)), do=_giver(settings, missing))
    else:
        yield Step("rights", "well", f"all that {' and '.join(sorted({r.user for r in wanted}))} need")


def _said(right: Right) -> str:
    star = "*" if right.pattern == "PREFIXED" else ""
    return f"{right.user} may {right.operation} {right.kind.lower()} {right.name}{star}"


def _there(client: Any) -> set[Right]:
    from kafka.admin import (
        ACLFilter,
        ACLOperation,
        ACLPermissionType,
        ACLResourcePatternType,
        ResourcePatternFilter,
        ResourceType,
    )

    every = ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY)
    found, _ = client.describe_acls(ACLFilter(None, None, ACLOperation.ANY, ACLPermissionType.ALLOW, every))
    return {
        Right(
            acl.principal,
            acl.operation.name,
            acl.resource_pattern.resource_type.name,
            acl.resource_pattern.resource_name,
            acl.resource_pattern.pattern_type.name,
        )
        for acl in found
    }


def _giver(settings: KafkaSettings, missing: Sequence[Right]) -> Callable[[], None]:
    def give() -> None:
        with admin(settings, "give rights") as client:
            answer = client.create_acls([_acl(right) for right in missing])
            if answer["failed"]:
                failed = ", ".join(sorted({error.__name__ for error in answer["failed"]}))
                raise BusRefused(f"the broker refused {len(answer['failed'])} of {len(missing)} rights: {failed}")
            seen(lambda: set(missing) <= _there(client), "rights")

    return give


def _acl(right: Right) -> Any:
    from kafka.admin import ACL, ACLOperation, ACLPermissionType, ACLResourcePatternType, ResourcePattern, ResourceType

    pattern = ResourcePattern(ResourceType[right.kind], right.name, ACLResourcePatternType[right.pattern])
    return ACL(right.user, "*", ACLOperation[right.operation], ACLPermissionType.ALLOW, pattern)
