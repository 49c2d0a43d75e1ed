"""What kind of work an operation of a training job is, by its name: compute, input, or something with a wait in it.

Only compute tells who is slow. An operation that talks to other ranks lasts as long as the last of them needs, so a
slow rank shows in everybody's; clipping by the global norm of gradients is one of these. A name that says nothing is
compute where it carries a microbatch number, else "cannot tell".
"""

from __future__ import annotations

import re
from typing import Final, Literal

Kind = Literal["work", "optimizer", "input", "wait", "unknown"]

_WAITS: Final = re.compile(
    r"send|recv|receive|reduce|gather|scatter|broadcast|bcast|all.?to.?all|a2a|p2p|nccl|rccl|sync|barrier|wait|comm"
    r"|collective|clip|bubble|idle"
)
_INPUT: Final = re.compile(r"data|(?<!off)load|fetch|input|get.?batch|tokeni")
_ASIDE: Final = re.compile(r"^gc$|garbage|checkpoint|save|log(?!it)|offload|eval|valid")
_FORWARD: Final = re.compile(r"forward|fwd|fprop")
_BACKWARD: Final = re.compile(r"backward|bwd|bprop|wgrad|dgrad")
_OPTIMIZER: Final = re.compile(r"optim|adam|weight.?update|param.?update")


def kind_of(name: str, *, microbatch: bool) -> Kind:
    """What an operation of that name is; ``microbatch`` says whether it carries a microbatch number."""
    lower = name.lower()
    if _WAITS.search(lower):
        return "wait"
    if _ASIDE.search(lower):
        return "unknown"
    if _FORWARD.search(lower) or _BACKWARD.search(lower):
        return "work"
    if _OPTIMIZER.search(lower):
        return "optimizer"
    if _INPUT.search(lower):
        return "input"
    return "work" if microbatch or "compute" in lower else "unknown"


def part_of(name: str) -> str:
    """Which part of a step's work it is: forward, backward, or the operation itself where its name says neither."""
    lower = name.lower()
    if _BACKWARD.search(lower):
        return "backward"
    return "forward" if _FORWARD.search(lower) else name
