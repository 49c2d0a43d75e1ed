"""Roles are learned from which operations run, in which order, or from rank numbers; never from how long they take."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from graynode.detectors import operations, roles
from graynode.detectors.straggler_excess import deviations
from graynode.detectors.straggler_places import places

DP, PP = 4, 4
STAGE = np.repeat(np.arange(PP), DP)
NODE = np.arange(DP * PP) // 2
ENDS = {"runs send": (STAGE < PP - 1).astype(np.int64), "runs recv": (STAGE > 0).astype(np.int64)}
ORDER = {"forwards before a backward": PP - STAGE}


def same(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two numberings make the same groups."""
    pairs = len(np.unique(np.stack([one, other]), axis=1)[0])
    return pairs == len(np.unique(one)) == len(np.unique(other))


@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_operations_tells_all_stages_under_any_names(seed: int) -> None:
    """A 1F1B schedule: stage s runs so many forwards first. Permuted rank numbers change nothing."""
    order = np.random.default_rng(seed).permutation(DP * PP)
    learned = roles.learn(np.arange(DP * PP), NODE[order], {n: t[order] for n, t in (ENDS | ORDER).items()})
    assert learned.source == "learned"
    assert same(learned.code, STAGE[order])
    assert not learned.mixed.any()


@pytest.mark.parametrize("by_pipeline", [False, True])
def test_rank_numbers_tell_middle_stages_apart(by_pipeline: bool) -> None:
    """Which operations run tells the ends; blocks of ranks (or every fourth) that agree with it tell the middle."""
    stage = np.tile(np.arange(PP), DP) if by_pipeline else STAGE
    traits = {"runs send": (stage < PP - 1).astype(np.int64), "runs recv": (stage > 0).astype(np.int64)}
    learned = roles.learn(4 * np.arange(16), NODE, traits)
    assert same(learned.code, stage)


def test_permuted_middle_stages_stay_mixed() -> None:
    """Without a pattern the middle is one role, marked as perhaps several, each of at least four ranks."""
    order = np.random.default_rng(3).permutation(16)
    learned = roles.learn(np.arange(16), NODE, {n: t[order] for n, t in ENDS.items()})
    assert learned.count == 3
    middle = (STAGE[order] == 1) | (STAGE[order] == 2)
    assert (learned.mixed == middle).all()
    assert learned.width == 4


def test_a_role_of_one_node_is_not_learned() -> None:
    """Three ranks on one node that run something else may be a stage, and may be a node: cannot tell."""
    learned = roles.learn(np.arange(11), np.arange(11) // 3, {"runs x": (np.arange(11) >= 3).astype(np.int64)})
    assert (learned.code[:3] == -1).all()
    assert (learned.code[3:] >= 0).all()


def test_nothing_to_learn_from_is_assumed_and_said() -> None:
    """No traits: all ranks are taken to do the same."""
    learned = roles.learn(np.arange(8), np.arange(8) // 2, {})
    assert learned.source == "assumed"
    assert learned.count == 1


def test_levels_cannot_be_learned_from() -> None:
    """No durations are given to the learning of roles."""
    assert list(inspect.signature(roles.learn).parameters) == ["rank", "node", "traits"]


def test_pipelines_are_learned_from_what_varies_together() -> None:
    """Stages that work on the same sequences vary together, in any order; where nothing varies, nobody knows."""
    rng = np.random.default_rng(2)
    pipeline = np.concatenate([rng.permutation(DP) for _ in range(PP)])
    told = roles.given(STAGE)
    alone = places(STAGE, None, NODE)
    for spread, known in ((0.2, True), (0.0, False)):
        data = np.exp(rng.normal(0, spread, (DP, 30)))[pipeline]
        seconds = data * np.exp(rng.normal(0, 0.01, data.shape))
        learned = roles.learn_pipelines(deviations(seconds, alone)[1], told)
        assert (learned is not None) == known
        if learned is not None:
            assert same(learned, pipeline)


@pytest.mark.parametrize(
    ("name", "microbatch", "kind"),
    [
        ("forward-compute", True, "work"), ("BackwardStep", False, "work"), ("wgrad", False, "work"),
        ("forward-recv", False, "wait"), ("grads-reduce-scatter", False, "wait"), ("ncclAllReduce", False, "wait"),
        ("optimizer", False, "optimizer"), ("optimizer-clip-main-grad", False, "wait"),
        ("AdamW.step", False, "optimizer"),
        ("data-loading", False, "input"), ("get_batch", False, "input"),
        ("gc", True, "unknown"),
        ("save-checkpoint", False, "unknown"), ("cpu-offload", False, "unknown"),
        ("F", True, "work"), ("F", False, "unknown"),
    ],
)  # fmt: skip
def test_operations_are_told_by_name(name: str, microbatch: bool, kind: str) -> None:
    """What waits for others is no work; a name that says nothing is work only with a microbatch number."""
    assert operations.kind_of(name, microbatch=microbatch) == kind
