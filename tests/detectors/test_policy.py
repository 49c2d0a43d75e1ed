"""The Xid policy: every number of the catalogue, and what is not in it."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graynode.detectors.policy import PATH, load, shipped

RESTART_APP = {8, 11, 13, 25, 31, 32, 39, 40, 41, 60, *range(68, 73), *range(75, 78), 80, *range(82, 87), 88, 89, 94,
               *range(96, 106), *range(126, 136), 139}  # fmt: skip
IGNORE = {37, 38, 43, 44, 63, 66, 67, 92, 93, 106, 107, 121, 137, 141, 152, 153, 157, 160, 161}
RESET_GPU = {46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158}


@pytest.mark.parametrize(
    ("bucket", "codes"),
    [
        ("RESTART_APP", RESTART_APP), ("IGNORE", IGNORE), ("RESET_GPU", RESET_GPU), ("RESTART_BM", {79}),
        ("CHECK_MECHANICALS", {54}), ("RESTART_VM", {151}), ("CONTACT_SUPPORT", {61, 142}), ("UPDATE_SWFW", {78}),
        ("CHECK_UVM", {159}), ("WORKFLOW_XID_45", {45}), ("WORKFLOW_XID_48", {48}), ("WORKFLOW_NVLINK_ERR", {74}),
        ("WORKFLOW_NVLINK5_ERR", set(range(144, 151))), ("XID_154", {154}), ("", set(range(162, 173))),
    ],
)  # fmt: skip
def test_catalogue_buckets(bucket: str, codes: set[int]) -> None:
    """Every number has the immediate action that NVIDIA's catalogue gives it."""
    assert {code: shipped().xids[code].nvidia for code in codes} == dict.fromkeys(codes, bucket)


def test_xid_119_asks_for_a_reset_in_plain_words() -> None:
    """The words say who asks, for what, and how; the source carries its version."""
    verdict = shipped().xid(119)
    assert verdict.action.startswith("NVIDIA's catalogue asks for a GPU reset.")
    assert (verdict.cause, verdict.severity, verdict.hold) == ("driver_fault", "page", True)
    assert "2025-10-29" in verdict.action_source
    assert "policy 1" in verdict.action_source


@pytest.mark.parametrize("code", [13, 31, 43, 45])
def test_application_xids_tell_nobody(code: int) -> None:
    """Errors that are documented as usually the application's are for the digest and the job's owner."""
    verdict = shipped().xid(code)
    assert (verdict.cause, verdict.severity, verdict.owner) == ("application_error", "digest", "job_owner")


@given(st.integers(min_value=-(2**31), max_value=2**31))
def test_any_number_has_a_verdict(code: int) -> None:
    """A number that the policy does not know is a ticket that asks a person, and is never acted on."""
    verdict = shipped().xid(code)
    if code not in shipped().xids:
        assert (verdict.known, verdict.severity, verdict.hold) == (False, "ticket", False)
        assert "Ask a person" in verdict.action


def test_sxid_numbers_are_not_xids() -> None:
    """SXid 79 says nothing of a GPU off the bus; its own line's severity decides."""
    fatal, mild = shipped().sxid(79, {"severity": "fatal"}), shipped().sxid(79, {"severity": "nonfatal"})
    assert (fatal.cause, fatal.severity) == ("nvlink_fault", "page")
    assert (mild.cause, mild.severity) == ("nvlink_fault", "digest")
    assert "bus" not in fatal.title


@pytest.mark.parametrize(
    ("facts", "severity", "bucket"),
    [
        ({"severity": "fatal", "unit": "RLW_RXPIPE"}, "page", "RESET_GPU"),
        ({"severity": "nonfatal", "unit": "RLW_RXPIPE"}, "digest", "IGNORE"),
        ({"severity": "nonfatal", "unit": "RLW_REMAP"}, "ticket", "XID_154"),
        ({}, "ticket", "WORKFLOW_NVLINK5_ERR"),
    ],
)
def test_nvlink5_errors_go_by_unit_and_severity(facts: dict[str, str], severity: str, bucket: str) -> None:
    """Where the line names severity and unit, they decide; without them a person reads the line."""
    verdict = shipped().xid(145, facts)
    assert (verdict.severity, verdict.bucket) == (severity, bucket)


@pytest.mark.parametrize(
    ("to", "severity", "words"),
    [
        ("0x1", "ticket", "GPU reset"), ("0x2", "page", "node reboot"), ("0x3", "ticket", "drain peer-to-peer"),
        ("0x4", "ticket", "drain and reset"), ("0x5", "ticket", "ask a person"), ("0x7", "ticket", "ask a person"),
        ("", "ticket", "ask a person"),
    ],
)  # fmt: skip
def test_xid_154_reads_the_recovery_action(to: str, severity: str, words: str) -> None:
    """Values that all driver branches agree on have their meaning; 5, 6, 7 differ by branch and ask a person."""
    verdict = shipped().xid(154, {"action_to": to})
    assert verdict.severity == severity
    assert words in verdict.action


def test_recovery_action_none_is_the_end_of_it() -> None:
    """A change to "none" is contrary evidence."""
    assert shipped().xid(154, {"action_to": "0x0"}).clears == ("xid_154",)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"cause": "bad_luck"}, "bad_luck"),
        ({"severity": "loud"}, "loud"),
        ({"nvidia": "PRAY"}, "PRAY"),
        ({"mistyped": 1}, "mistyped"),
    ],
)
def test_a_wrong_policy_file_says_what_is_wrong(tmp_path: Path, change: dict[str, object], said: str) -> None:
    """A word that the contract does not have is refused by number and word."""
    data = json.loads(PATH.read_text())
    data["xids"]["79"] |= change
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match=said):
        load(path)


def test_no_policy_file(tmp_path: Path) -> None:
    """A missing file is named."""
    with pytest.raises(ValueError, match=r"nowhere\.json"):
        load(tmp_path / "nowhere.json")


def test_a_site_has_its_own_mind_about_an_xid() -> None:
    """Its severity wins and the verdict says whose it is; other numbers, and what ends something, stay as they are."""
    own = shipped().for_site({63: "page", 79: "digest", 9999: "digest"})
    assert own.xid(63).severity == "page"
    assert own.xid(63).action_source.endswith("severity set by this site")
    assert own.xid(79).severity == "digest"
    assert own.xid(9999).severity == "digest"
    assert own.xid(95) == shipped().xid(95)
    over = {"action_to": "0", "action": "none"}
    assert shipped().for_site({154: "page"}).xid(154, over) == shipped().xid(154, over)
    with pytest.raises(ValueError, match="Xid 13: 'loud' is none of page, ticket, digest"):
        shipped().for_site({13: "loud"})
