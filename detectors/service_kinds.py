"""Events about a node's services, mounts, memory, disks and BMC (collector ``services``): what each kind means.

All are ``host_fault``. ``about`` names the service or mount, and is part of the finding's signal, so that one that
comes back clears itself and no other. Holding kinds are over by the event that says so, or by a boot: silence is no
health.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from graynode.detectors.policy import Verdict

Facts = Mapping[str, Any]

_STORM: Final = 5
"""Restarts within an hour from which a service counts as not running: systemd's own limit is 5 starts in 10 s, which a
service that lives a minute never meets."""
_FABRIC: Final = "nvidia-fabricmanager"


def _host_fault(title: str, severity: str, action: str, next_step: str = "", *, hold: bool = False) -> Verdict:
    return Verdict(title, "host_fault", severity, "platform", action, "graynode rules", next_step, hold=hold)


def about(facts: Facts) -> str:
    """What the event speaks of, short enough for a signal."""
    return str(facts.get("about") or "")[:80]


def _service_failed(facts: Facts) -> Verdict:
    unit = about(facts)
    action = "Read its journal (journalctl -u), mend it, start it; keep new jobs off until it runs."
    if unit.startswith(_FABRIC):
        action = (
            "NVSwitch jobs cannot start without it: read /var/log/fabricmanager.log and its journal, then start it."
        )
    return _host_fault(
        f"service {unit} does not run ({facts.get('state') or 'state unknown'} since {facts.get('since')})",
        "ticket",
        action,
        "If this node is not meant to run it, disable the unit or name it in services.ignore.",
        hold=True,
    )


def _service_restarted(facts: Facts) -> Verdict:
    times = facts.get("in_last_hour")
    storm = isinstance(times, int) and times >= _STORM
    return _host_fault(
        f"service {about(facts)} was restarted by systemd, {times} times in the last hour",
        "ticket" if storm else "digest",
        "Read its journal: it starts and dies." if storm else "Nothing at once; watch whether it goes on.",
    )


def _mount_hung(facts: Facts) -> Verdict:
    return _host_fault(
        f"mount {about(facts)} ({facts.get('type')} {facts.get('source')}) has not answered since {facts.get('since')}",
        "ticket",
        "Jobs that touch it hang in the kernel. Look at the file server and the way to it; many nodes at once mean the "
        "server.",
        "If the server is well, restart the node once its jobs have ended: hung processes cannot be killed.",
        hold=True,
    )


def _mount_failing(facts: Facts) -> Verdict:
    return _host_fault(
        f"mount {about(facts)} answers with errors only: {facts.get('why') or 'no reason told'}",
        "ticket",
        "Jobs that touch it fail. Mount it again once its server or daemon is well; many nodes at once mean these.",
        hold=True,
    )


def _mount_read_only(facts: Facts) -> Verdict:
    return _host_fault(
        f"file system {about(facts)} ({facts.get('source')}) cannot be written any more",
        "ticket",
        "The kernel gave up writing after errors: read the kernel log for the disk, drain the node, check the disk.",
        hold=True,
    )


def _disk_full(facts: Facts) -> Verdict:
    return _host_fault(
        f"file system {about(facts)} is full: {facts.get('why') or ''}".rstrip(": "),
        "ticket",
        "Make room: job leftovers, container images, core files, logs.",
        hold=True,
    )


def _edac_ue(facts: Facts) -> Verdict:
    return _host_fault(
        f"{facts.get('errors') or 'an'} uncorrected host memory error(s) on {about(facts)}",
        "ticket",
        "Take the node out at the end of its job; replace the DIMM that the counts or the BMC's log name.",
        hold=True,
    )


def _nvme_warning(facts: Facts) -> Verdict:
    return _host_fault(
        f"disk {about(facts)} warns of itself: {facts.get('why') or 'critical warning'}",
        "ticket",
        "Save what is on it and replace it; a disk that became read-only or lost its reliability does not recover.",
        hold=True,
    )


def _ipmi_sel(facts: Facts) -> Verdict | None:
    if facts.get("critical") is not True:
        return None
    return _host_fault(
        f"BMC: {about(facts)}: {facts.get('event')}",
        "ticket",
        "Read the BMC's event log around it; replace what it names.",
        "The time in the record is the BMC's own, whose clock may be wrong.",
    )


def _always(verdict: Verdict) -> Callable[[Facts], Verdict]:
    return lambda _facts: verdict


def _over(*kinds: str) -> Callable[[Facts], Verdict]:
    def clear(facts: Facts) -> Verdict:
        signals = tuple(f"{kind}_{about(facts)}" for kind in kinds)
        return Verdict("over", "", "digest", "platform", "", "graynode rules", "", clears=signals)

    return clear


SERVICE_KINDS: Final[Mapping[Any, Callable[[Facts], Verdict | None]]] = {
    "service_failed": _service_failed,
    "service_restarted": _service_restarted,
    "service_back": _over("service_failed"),
    "mount_hung": _mount_hung,
    "mount_failing": _mount_failing,
    "mount_read_only": _mount_read_only,
    "mount_back": _over("mount_hung", "mount_failing", "mount_read_only"),
    "disk_full": _disk_full,
    "disk_room": _over("disk_full"),
    "edac_ue": _edac_ue,
    "edac_ce": _always(_host_fault("corrected host memory errors", "digest", "Nothing at once; watch the count.")),
    "nvme_critical_warning": _nvme_warning,
    "nvme_dead": _always(
        _host_fault("an NVMe disk is dead to the kernel", "ticket", "Drain the node and replace the disk.", hold=True)
    ),
    "nvme_well": _over("nvme_critical_warning", "nvme_dead"),
    "ipmi_sel": _ipmi_sel,
}
"""By event kind."""
