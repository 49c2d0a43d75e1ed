"""What an Xid or SXid asks for: NVIDIA's catalogue first, as data with source and version.

``xid_policy.json`` holds, for every Xid that the catalogue uses, its mnemonic and immediate action ("resolution
bucket"), our cause, severity and owner, and who in the field sees it differently. A number that it does not know
is kept as a ticket that asks a person; nothing is ever done about it. SXid numbers are not Xid numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from graynode.pipeline.schema import CAUSES, OWNERS, SEVERITIES

PATH: Final = Path(__file__).with_name("xid_policy.json")
_NVLINK5: Final = range(144, 151)
_RECOVERY: Final = 154
_READ_RECOVERY: Final = frozenset({"RLW_REMAP", "RLW_SRC_TRACK"})
"""Units of Xid 145 whose non-fatal errors the catalogue sends on to the recovery action (Xid 154)."""
_RECOVERY_ACTIONS: Final[Mapping[int, tuple[str, str, str]]] = {
    1: ("GPU reset", "RESET_GPU", "ticket"),
    2: ("node reboot", "RESTART_BM", "page"),
    3: ("drain peer-to-peer work", "XID_154", "ticket"),
    4: ("drain and reset the GPU", "RESET_GPU", "ticket"),
}
"""Values of ``nvmlGpuRecoveryAction`` on which all driver branches agree; 0 asks for nothing. The enumeration is open:
5, 6 and 7 mean different things in 580 and 615, so any other value asks a person and is never acted on."""


class Action(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``asks``: what the catalogue asks for, in our words; ``action``: what that means for the person."""

    asks: str
    action: str


class Xid(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One Xid. ``hold``: silence afterwards is no proof of health. ``disagree``: who sees it otherwise, and how."""

    mnemonic: str
    name: str
    nvidia: str
    cause: str
    severity: str
    owner: str
    next_step: str = ""
    hold: bool = False
    disagree: dict[str, str] = {}


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    source: str
    source_version: str
    actions: dict[str, Action]
    unused: list[int]
    xids: dict[int, Xid]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to think of one event. ``bucket`` is the catalogue's word; empty where it has none.

    ``clears`` names signals that this event says are over; with ``new_boot`` only those of an earlier boot.
    """

    title: str
    cause: str
    severity: str
    owner: str
    action: str
    action_source: str
    next_step: str
    bucket: str = ""
    hold: bool = False
    known: bool = True
    clears: tuple[str, ...] = ()
    new_boot: bool = False
    disagree: Mapping[str, str] | None = None


class Policy:
    """The loaded policy. ``severities`` are the site's own, by Xid number: they win, and the verdict says so."""

    def __init__(self, data: _File, severities: Mapping[int, str] | None = None) -> None:
        self._data, self._severities = data, dict(severities or {})
        self.version = data.version
        self.source = f"{data.source} ({data.source_version}), graynode policy {data.version}"

    @property
    def xids(self) -> Mapping[int, Xid]:
        """Every Xid by number."""
        return self._data.xids

    def xid(self, code: int, attributes: Mapping[str, Any] | None = None) -> Verdict:
        """The verdict on an Xid, with what its line said beside the number."""
        verdict = self._xid(code, attributes or {})
        own = self._severities.get(code)
        if own is None or verdict.clears:
            return verdict
        return replace(verdict, severity=own, action_source=f"{verdict.action_source}; severity set by this site")

    def for_site(self, severities: Mapping[int, str]) -> Policy:
        """The same policy with a site's severities. ``ValueError`` for a severity that there is none of."""
        for code, severity in severities.items():
            if severity not in SEVERITIES:
                raise ValueError(f"Xid {code}: {severity!r} is none of {', '.join(SEVERITIES)}")
        return Policy(self._data, severities)

    def _xid(self, code: int, facts: Mapping[str, Any]) -> Verdict:
        known = self._data.xids.get(code)
        if known is None:
            return self._unknown(code)
        verdict = self._verdict(code, known)
        if code in _NVLINK5:
            return self._nvlink5(verdict, facts)
        if code == _RECOVERY:
            return self.recovery(_integer(facts.get("action_to")), str(facts.get("action") or ""))
        return verdict

    def sxid(self, code: int, attributes: Mapping[str, Any] | None = None) -> Verdict:
        """The verdict on an NVSwitch error: by the severity that its line states, never by Xid numbers."""
        fatal = str((attributes or {}).get("severity", "")) == "fatal"
        return Verdict(
            title=f"SXid {code} ({'fatal' if fatal else 'non-fatal'} NVSwitch error)",
            cause="nvlink_fault",
            severity="page" if fatal else "digest",
            owner="platform",
            action=(
                "The switch calls it fatal: jobs over this NVSwitch fail. Take the node out, and reset all its GPUs "
                "and switches together." if fatal else "The switch calls it non-fatal: nothing at once."
            ),
            action_source="severity in the kernel's SXid line; NVIDIA's fabric manager guide",
            next_step="Read the fabric manager's log for this SXid and look at the GPU at the other end of the link.",
            hold=fatal,
        )  # fmt: skip

    def recovery(self, value: int | None, words: str = "") -> Verdict:
        """The verdict on a recovery action that the driver asks for; values not agreed on ask a person."""
        known = self._verdict(_RECOVERY, self._data.xids[_RECOVERY])
        if value == 0:
            return replace(
                known,
                title="the driver asks for no recovery action",
                severity="digest",
                hold=False,
                clears=("xid_154",),
            )
        if value is not None and value in _RECOVERY_ACTIONS:
            name, bucket, severity = _RECOVERY_ACTIONS[value]
            asks = f"The driver asks for: {name}. {self._data.actions[bucket].action}"
            return replace(known, title=f"recovery action: {name}", severity=severity, action=asks, bucket=bucket)
        said = f" ({words})" if words else ""
        which = f"recovery action {value}{said}" if value is not None else "a recovery action"
        ask = (
            f"The driver asks for {which}, whose meaning depends on the driver version: ask a person; nothing is done."
        )
        return replace(known, title=which, action=ask, bucket="", known=False)

    def _verdict(self, code: int, known: Xid) -> Verdict:
        act = self._data.actions[known.nvidia]
        return Verdict(
            title=f"Xid {code} ({known.mnemonic}): {known.name}",
            cause=known.cause,
            severity=known.severity,
            owner=known.owner,
            action=f"{act.asks} {act.action}",
            action_source=self.source,
            next_step=known.next_step,
            bucket=known.nvidia,
            hold=known.hold,
            disagree=known.disagree or None,
        )

    def _unknown(self, code: int) -> Verdict:
        listed = "the catalogue lists it as unused" if code in self._data.unused else "the catalogue does not know it"
        return Verdict(
            title=f"Xid {code} (unknown)",
            cause="driver_fault",
            severity="ticket",
            owner="platform",
            action=f"Xid {code}: {listed}. Ask a person; graynode does not act on it.",
            action_source=self.source,
            next_step="Look for the number in the newest catalogue or driver release notes; ask the vendor.",
            known=False,
        )

    def _nvlink5(self, verdict: Verdict, facts: Mapping[str, Any]) -> Verdict:
        said, unit = str(facts.get("severity", "")), str(facts.get("unit", ""))
        where = f" in {unit}" if unit else ""
        if said == "fatal":
            act = self._data.actions["RESET_GPU"]
            return replace(
                verdict,
                title=f"{verdict.title}: fatal{where}",
                severity="page",
                bucket="RESET_GPU",
                action=f"{act.asks} {act.action}",
            )
        if said != "nonfatal":
            return verdict
        if unit in _READ_RECOVERY:
            act = self._data.actions["XID_154"]
            return replace(
                verdict, title=f"{verdict.title}: non-fatal{where}", action=f"{act.asks} {act.action}", bucket="XID_154"
            )
        act = self._data.actions["IGNORE"]
        return replace(
            verdict,
            title=f"{verdict.title}: non-fatal{where}",
            severity="digest",
            action=f"{act.asks} {act.action}",
            bucket="IGNORE",
            hold=False,
        )


def load(path: Path = PATH) -> Policy:
    """The policy of a file. ``ValueError`` names what in it is wrong."""
    try:
        data = msgspec.json.decode(path.read_bytes(), type=_File, strict=False)
    except (OSError, msgspec.DecodeError) as error:
        raise ValueError(f"{path}: not an Xid policy: {error}") from error
    for code, xid in data.xids.items():
        for word, allowed in (
            (xid.cause, CAUSES),
            (xid.severity, SEVERITIES),
            (xid.owner, OWNERS),
            (xid.nvidia, data.actions),
        ):
            if word not in allowed:
                raise ValueError(f"{path}: Xid {code}: {word!r} is none of {', '.join(allowed)}")
    return Policy(data)


@functools.cache
def shipped() -> Policy:
    """The policy that ships with graynode, read once."""
    return load()


def _integer(value: Any) -> int | None:  # noqa: ANN401 (JSON)
    try:
        return int(str(value), 0)
    except ValueError:
        return None
