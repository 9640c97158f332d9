"""What mutants showed that no test noticed."""

from __future__ import annotations

from random import Random

import pytest

from tltsched.cluster import ClusterScheduler
from tltsched.cluster_config import ClusterConfig
from tltsched.commands import Assign, SetDraftConfig, Withdraw
from tltsched.draft_config import OFF, DraftConfig, chain
from tltsched.errors import InputError, ProtocolError
from tltsched.events import (
    BatchFormed,
    DecisionEnded,
    PhaseEnded,
    Request,
    RequestsFinished,
    RolloutBegan,
    RolloutEnded,
    StepBegan,
)
from tltsched.policies import PRESETS
from tltsched.policies.base import Batch, Outcome, PolicyConfig
from tltsched.policies.beg_mab import RELEASED_GROUPS, BegMabConfig
from tltsched.policies.goodput import ASSUMED_SPREAD, ASSUMED_SURVIVAL, GoodputConfig
from tltsched.policies.none import NoneConfig
from tltsched.policies.static import StaticConfig
from tltsched.policies.table import TableConfig
from tltsched.policies.threshold import ThresholdConfig
from tltsched.step_times import DraftConfigTimes, StepTimeTable
from tltsched.worker import WorkerScheduler


def test_only_those_who_see_lengths_know_them() -> None:
    assert not ClusterConfig().knows_lengths()
    assert not ClusterConfig(dispatch="round_robin").knows_lengths()
    assert ClusterConfig(dispatch="longest_first").knows_lengths()
    assert ClusterConfig(schedule="longest_first").knows_lengths()


@pytest.mark.parametrize("threshold", [6, 7])
def test_above_the_threshold_nothing_is_drafted_until_the_batch_falls_to_it(threshold: int) -> None:
    config = ThresholdConfig(
        inner=StaticConfig(draft_config="2"), threshold_requests=threshold, warmup_engine_steps=0
    )
    choice = config.build(Random(0), None).choose(Batch(threshold + 20, 1000))  # noqa: S311
    assert choice.draft_config == OFF
    assert choice.min_requests == threshold + 1


def test_priors_at_the_ends_of_their_ranges_are_taken() -> None:
    GoodputConfig(draft_configs=("off", "2"), acceptance_prior=(0.5, 0.0))
    GoodputConfig(draft_configs=("off", "4_4_16"), tree_prior={"4_4_16": 1.0})
    GoodputConfig(draft_configs=("off", "4_4_16"), tree_prior={"4_4_16": 5.0})
    for length in (0.99, 5.01):
        with pytest.raises(InputError):
            GoodputConfig(draft_configs=("off", "4_4_16"), tree_prior={"4_4_16": length})
    with pytest.raises(InputError):
        GoodputConfig(draft_configs=("off", "2"), acceptance_prior=(0.5, -0.1))
    with pytest.raises(InputError):
        GoodputConfig(draft_configs=("off", "2"), acceptance_prior=(0.5, 0.4, -0.1))
    GoodputConfig(draft_configs=("off", "2"), acceptance_prior=(0.5,))


# --- defaults that users meet: published ones are those of the source, assumed ones those that pages name ---


def test_the_threshold_is_that_of_its_sources() -> None:
    """mit-han-lab/fastrl: T = 32 and 10 engine steps; the paper has no latch."""
    config = ThresholdConfig(inner=StaticConfig(draft_config="2"))
    assert (config.threshold_requests, config.warmup_engine_steps, config.latch) == (32, 10, False)
    assert (config.when_off, config.resume_cost) == ("drafter_dropped", "draft_prefill")


def test_the_bandit_is_that_of_its_sources() -> None:
    """arXiv 2511.16665 and mit-han-lab/fastrl; the interval between two picks is this project's own."""
    config = BegMabConfig()
    assert (config.variant, config.epsilon, config.window) == ("paper", 0.1, 300)
    assert config.thresholds == (1, 2, 5, 21)
    assert config.strategies == ("8_4_48", "8_4_32", "8_4_16", "8_4_8")
    assert config.decision_engine_steps == 64
    assert RELEASED_GROUPS[:31] == tuple(range(1, 32))
    assert RELEASED_GROUPS[31:] == (
        32,
        40,
        48,
        56,
        64,
        72,
        80,
        88,
        96,
        104,
        112,
        120,
        128,
        160,
        192,
        224,
        256,
    )


def test_goodput_assumes_what_its_page_says() -> None:
    config = GoodputConfig()
    assert config.draft_configs == ("off", "1", "2", "4", "8")
    assert ASSUMED_SURVIVAL == (0.7, 0.49, 0.343, 0.2401, 0.1681, 0.1176, 0.0824, 0.0576)
    assert (config.acceptance_prior, config.request_spread, ASSUMED_SPREAD) == (ASSUMED_SURVIVAL, 0.5, 0.5)
    assert (config.decision_engine_steps, config.switch_cost_s, config.hysteresis) == (64, 0.0, 0.005)
    assert (config.memory_request_steps, config.request_memory_steps) == (2000.0, 100.0)
    assert (config.by_request, config.probe_every_engine_steps) == (True, 0)


# --- ends of ranges --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "least", "below"),
    [
        ("decision_engine_steps", 1, 0), ("switch_cost_s", 0.0, -0.001), ("hysteresis", 0.0, -0.001),
        ("probe_every_engine_steps", 0, -1), ("request_spread", 0.01, 0.009),
        ("request_memory_steps", 1.0, 0.99),
    ],
)  # fmt: skip
def test_the_least_that_goodput_takes(field: str, least: float, below: float) -> None:
    GoodputConfig(**{field: least})  # type: ignore[arg-type]
    with pytest.raises(InputError, match=field):
        GoodputConfig(**{field: below})  # type: ignore[arg-type]


def test_the_least_that_a_threshold_takes() -> None:
    inner = StaticConfig(draft_config="2")
    ThresholdConfig(inner=inner, threshold_requests=1, warmup_engine_steps=0)
    for wrong in ({"threshold_requests": 0}, {"warmup_engine_steps": -1}):
        with pytest.raises(InputError):
            ThresholdConfig(inner=inner, **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [{"epsilon": -0.01}, {"epsilon": 1.01}, {"window": 0}, {"decision_engine_steps": 0}, {"strategies": ()},
     {"strategies": ("8_4_48", "8_4_48", "8_4_16", "8_4_8")},
     {"strategies": ("8_4_48", "8_4_32", "8_4_16", "off")}, {"thresholds": (1, 2, 5)}],
)  # fmt: skip
def test_what_a_bandit_refuses(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError):
        BegMabConfig(**wrong)  # type: ignore[arg-type]


def test_a_bandit_of_the_least_and_of_the_most() -> None:
    for epsilon in (0.0, 1.0):
        BegMabConfig(epsilon=epsilon, window=1, decision_engine_steps=1)


@pytest.mark.parametrize(
    "config", [ThresholdConfig(inner=StaticConfig(draft_config="2")), BegMabConfig(), GoodputConfig()]
)
def test_settings_do_not_change_once_they_are_made(config: PolicyConfig) -> None:
    with pytest.raises(AttributeError):
        config.window = config.threshold_requests = config.hysteresis = 1  # type: ignore[attr-defined]


# --- policies --------------------------------------------------------------------------------------------


class Die:
    """A random number that is as small as it can be, and the last of a range."""

    def random(self) -> float:
        return 0.0

    def randrange(self, stop: int) -> int:
        return stop - 1


def test_without_epsilon_nothing_is_tried_at_random() -> None:
    config = BegMabConfig(epsilon=0.0, strategies=("8_8_16", "4_8_16"), thresholds=(1,))
    policy = config.build(Die(), None)
    for strategy, seconds in ((policy.draft_configs[0], 1.0), (policy.draft_configs[1], 2.0)):
        policy.observe(Outcome(strategy, 10, 40, seconds, (20,)))
    assert policy.choose(Batch(4, 400)).draft_config == policy.draft_configs[0]


def test_the_released_bandit_knows_parts_of_a_token() -> None:
    """1.2 and 1.7 tokens a step in the same time: the second of two strategies is better."""
    config = BegMabConfig(variant="released", epsilon=0.0, strategies=("8_8_16", "4_8_16"), thresholds=(1,))
    policy = config.build(Die(), None)
    for _ in range(3):
        for strategy, accepted in zip(policy.draft_configs, (8, 28), strict=True):
            policy.observe(Outcome(strategy, 10, 40, 1.0, (accepted,)))
    assert policy.choose(Batch(4, 400)).draft_config == policy.draft_configs[1]


def test_a_pick_of_the_paper_holds_to_the_edge_of_its_bucket() -> None:
    """All batches share the rewards, so nothing else ends it."""
    strategies, thresholds = ("8_8_32", "8_8_16", "4_8_16"), (1, 5)
    policy = BegMabConfig(strategies=strategies, thresholds=thresholds).build(Die(), None)
    assert policy.choose(Batch(9, 400)).min_requests == 5
    policy = BegMabConfig(strategies=strategies[1:], thresholds=(1,)).build(Die(), None)
    assert policy.choose(Batch(9, 400)).min_requests == 1


def goodput(**settings: object) -> tuple[GoodputConfig, StepTimeTable]:
    """Return goodput over off and 2, and times of 10 ms without and 20 ms with drafts, whatever the batch."""
    draft_configs = (OFF, chain(2))
    times = StepTimeTable(
        tuple(DraftConfigTimes(each, (0.02 if each.depth else 0.01,) * 9) for each in draft_configs)
    )
    return GoodputConfig(draft_configs=("off", "2"), by_request=False, **settings), times  # type: ignore[arg-type]


def test_a_change_has_to_promise_its_cost_and_the_hysteresis() -> None:
    """1 + 0.9 + 0.81 = 2.71 tokens in 20 ms are 35.5 % more than 1 in 10 ms."""
    survival = (0.9, 0.81)
    for settings, drafts in (
        ({"hysteresis": 0.34}, True), ({"hysteresis": 0.37}, False),
        ({"switch_cost_s": 0.1, "decision_engine_steps": 20, "hysteresis": 0.0}, True),  # 5 ms more: 1.084
        ({"switch_cost_s": 0.15, "decision_engine_steps": 20, "hysteresis": 0.0}, False),  # 7.5: 0.985
    ):  # fmt: skip
        config, times = goodput(acceptance_prior=survival, **settings)
        policy = config.build(Random(0), times)  # noqa: S311
        never = GoodputConfig(draft_configs=("off", "2"), by_request=False, acceptance_prior=(0.1, 0.0))
        policy.acceptance = never.build(Random(0), times).acceptance  # noqa: S311
        assert policy.choose(Batch(8, 800)).draft_config == OFF  # in use, from here on
        policy.acceptance = config.build(Random(0), times).acceptance  # noqa: S311
        assert policy.choose(Batch(8, 800)).draft_config == (chain(2) if drafts else OFF), settings


@pytest.mark.parametrize("every", [1, 7])
def test_a_probe_is_due_after_so_many_engine_steps_off_and_not_before(every: int) -> None:
    config, times = goodput(
        acceptance_prior=(0.1, 0.0), probe_every_engine_steps=every, decision_engine_steps=5
    )
    policy = config.build(Random(0), times)  # noqa: S311
    for ran in range(every):
        assert policy.choose(Batch(4, 400)).draft_config == OFF, ran
        policy.observe(Outcome(OFF, 1, 4, 0.01, ()))
    probe = policy.choose(Batch(4, 400))
    assert (probe.draft_config, probe.max_engine_steps) == (chain(2), 5)
    for begin_anew in (lambda: policy.observe(Outcome(chain(2), 5, 20, 0.1, (2, 0))), policy.begin_rollout):
        begin_anew()
        for ran in range(every):
            assert policy.choose(Batch(4, 400)).draft_config == OFF, ran
            policy.observe(Outcome(OFF, 1, 4, 0.01, ()))
        assert policy.choose(Batch(4, 400)).draft_config == chain(2)
    policy.begin_rollout()
    policy.observe(Outcome(OFF, every + 3, 4 * (every + 3), 0.01, ()))  # an interval may go beyond
    assert policy.choose(Batch(4, 400)).draft_config == chain(2)


def test_settings_of_policies_stay_as_they_are() -> None:
    for config in PRESETS.values():
        for name in config.__struct_fields__:
            with pytest.raises(AttributeError, match="immutable"):
                setattr(config, name, None)


# --- the worker's scheduler ------------------------------------------------------------------------------


def worker_of(config: PolicyConfig) -> WorkerScheduler:
    return WorkerScheduler(3, config.build(Random(0), None))  # noqa: S311


def ended(
    draft_config: DraftConfig, accepted: tuple[int, ...], requests: int = 2, t_s: float = 2.0
) -> DecisionEnded:
    """Return an interval of one engine step of three requests."""
    return DecisionEnded(t_s, 3, draft_config, 1, 3, 0.1, accepted, (), requests, 100)


@pytest.mark.parametrize("other", [2, 4])
def test_a_worker_takes_its_own_events_alone(other: int) -> None:
    worker = worker_of(NoneConfig())
    with pytest.raises(ProtocolError, match=f"event of worker {other}"):
        worker.handle(RolloutBegan(0.0, other, 0, 0))


def test_nothing_happens_before_the_beginning() -> None:
    for refused in (RolloutBegan(-0.5, 3, 0, 0), RolloutBegan(0.0, 3, -1, 0)):
        with pytest.raises(ProtocolError):
            worker_of(NoneConfig()).handle(refused)
    with pytest.raises(ProtocolError):
        ClusterScheduler(2, ClusterConfig()).handle(StepBegan(-0.5, 0, (Request(0, 0, 10),)))


def test_steps_of_a_worker_may_repeat_and_never_go_back() -> None:
    worker = worker_of(NoneConfig())
    for event in (RolloutBegan(0.0, 3, 5, 0), RolloutEnded(1.0, 3), RolloutBegan(1.0, 3, 5, 0),
                  RolloutEnded(1.0, 3)):  # fmt: skip
        worker.handle(event)
    with pytest.raises(ProtocolError, match="step 5 already"):
        worker.handle(RolloutBegan(2.0, 3, 4, 0))


def test_no_draft_is_accepted_where_none_was_made_so_far() -> None:
    """In the rollout before counts: weights may part rollouts while its drafts are in flight."""
    table = TableConfig(draft_configs_by_batch=((1, "2"), (5, "off")), when_off="k0")
    worker = worker_of(table)
    for event in (RolloutBegan(0.0, 3, 0, 0), BatchFormed(0.5, 3, 9, 100)):
        worker.handle(event)
    with pytest.raises(ProtocolError, match="drafted 0 positions at most"):
        worker.handle(ended(OFF, (1,), 9, 0.6))
    for event in (BatchFormed(1.0, 3, 3, 100), ended(chain(2), (3, 3), 9),
                  ended(OFF, (3, 3), 9, 3.0),  # verified what was drafted before it
                  RolloutEnded(4.0, 3), RolloutBegan(4.0, 3, 1, 0), BatchFormed(5.0, 3, 9, 100)):  # fmt: skip
        worker.handle(event)
    with pytest.raises(ProtocolError, match="drafted 2 positions at most"):
        worker.handle(ended(OFF, (1, 1, 1), 9, 6.0))
    worker.handle(ended(OFF, (3, 3), 9, 6.0))


def test_a_batch_that_starts_off_has_dropped_its_drafter() -> None:
    """Its prefill leaves the drafter out, even if the interval off has run no engine step."""
    table = TableConfig(
        draft_configs_by_batch=((1, "2"), (5, "off")), when_off="drafter_dropped", resume_cost="reprefill"
    )
    worker = worker_of(table)
    worker.handle(RolloutBegan(0.0, 3, 0, 0))
    worker.handle(BatchFormed(1.0, 3, 9, 100))
    none_ran = DecisionEnded(1.5, 3, OFF, 0, 0, 0.0, (), (), 3, 100)
    assert worker.handle(none_ran) == (SetDraftConfig(3, chain(2), None, 1, "reprefill"),)


# --- the cluster's scheduler -----------------------------------------------------------------------------


def test_what_is_held_for_a_trainer_is_given_back_request_by_request() -> None:
    cluster = ClusterScheduler(2, ClusterConfig())
    cluster.handle(StepBegan(0.0, 0, tuple(Request(each, each, 10) for each in range(6))))
    cluster._held[1] = [Assign(1, (3, 4)), Assign(1, (5,))]
    assert cluster._release(Withdraw(1, (4, 5))) == (4, 5)
    assert cluster._held == {1: [Assign(1, (3,))]}
    assert set(cluster.cluster_view.placed[1]) == {3}
    assert cluster._release(Withdraw(1, (3,))) == (3,)
    assert cluster._held == {}


def test_a_schedule_is_told_what_is_given_back_at_once_and_other_moves_follow() -> None:
    cluster = ClusterScheduler(2, ClusterConfig(schedule="repack"))
    cluster.handle(StepBegan(0.0, 0, tuple(Request(each, each, 10) for each in range(6))))
    cluster._held[1] = [Assign(1, (3, 4, 5))]
    moves = cluster._move((Withdraw(1, (3,)), Withdraw(0, (1,))))
    assert moves == (Assign(0, (3,)), Withdraw(0, (1,)))  # nothing of the first is left for a worker to do
    assert set(cluster.cluster_view.placed[0]) == {0, 1, 2, 3}


def test_a_cluster_has_a_worker_and_phases_once_each() -> None:
    ClusterScheduler(1, ClusterConfig())
    with pytest.raises(InputError, match="workers"):
        ClusterScheduler(0, ClusterConfig())
    for wrong in (("reward", "reward"), ("reward", "")):
        with pytest.raises(InputError, match="phases"):
            ClusterConfig(phases=wrong)
    assert ClusterConfig().phases == ("reward", "logprob", "policy_update", "weight_sync")


def test_caches_are_forgotten_when_the_weights_are_new_and_not_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = ClusterScheduler(1, ClusterConfig(phases=("reward", "weight_sync", "other")))
    flushed: list[str] = []
    cluster.handle(StepBegan(0.0, 0, (Request(0, 0, 10),)))
    monkeypatch.setattr(cluster.cluster_view, "flush", lambda: flushed.append("now"))
    cluster.handle(RequestsFinished(1.0, 0, (0,)))
    flushed.clear()
    for phase, times in (("reward", 0), ("weight_sync", 1), ("other", 1)):
        cluster.handle(PhaseEnded(2.0, "".join(list(phase))))  # as a reader of a record makes it
        assert len(flushed) == times, phase
