"""Every detector's turn, one after the other or two at a time."""

from __future__ import annotations

import pytest
from window_rounds import Cluster

from graynode.detectors import NAMES, make
from graynode.detectors.base import Round, Scored, State
from graynode.service.turns import turns


def test_two_at_a_time_say_and_remember_what_one_after_the_other_do() -> None:
    """Over twelve rounds with the forest's among them: equal findings, equal states, in the order asked for."""
    c = Cluster(nodes=3, nodes_per_job=3)
    one: dict[str, State] = {}
    two: dict[str, State] = {}
    detectors = {name: make(name) for name in NAMES}
    for round_ in c.rounds(12):
        alone, together = turns(detectors, round_, one, at_once=1), turns(detectors, round_, two, at_once=2)
        assert list(alone) == list(together) == list(NAMES)
        for name in NAMES:
            assert alone[name].findings.equals(together[name].findings)
            assert alone[name].state.keys() == together[name].state.keys()
            assert all(f.equals(together[name].state[n]) for n, f in alone[name].state.items())
        one, two = ({n: s.state for n, s in said.items()} for said in (alone, together))


class Broken:
    """A detector that cannot."""

    name, version = "broken", 1

    def score(self, round_: Round, state: State) -> Scored:
        raise ArithmeticError("no")


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_detector_that_fails_is_not_passed_over(at_once: int) -> None:
    """The caller decides what a failure means; it is raised in either way."""
    (round_,) = Cluster(nodes=1).rounds(1)
    with pytest.raises(ArithmeticError):
        turns({"rules": make("rules"), "broken": Broken()}, round_, {}, at_once=at_once)
