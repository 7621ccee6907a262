"""A canary's stages: what it takes to go on, what ends it, and what chance may not do. Time is a number."""

from array import array
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.arms import Bands, Figures, point, root
from proxy.breach import Before, errors_breach, hit_breach, ttft_breach, usage_breach
from proxy.canary import Canary, Phase
from proxy.canary_terms import CanaryTerms

TERMS = CanaryTerms(policy="round_robin", baseline_seconds=30, settle_seconds=10, stage_seconds=60)


class Traffic:
    """Requests at a fixed rate, of many prompt starts, on a clock of their own."""

    def __init__(self, canary: Canary, *, rate: float = 40.0, seed: int = 1) -> None:
        self.canary, self.rate, self.rng, self.now = canary, rate, Random(seed), 0.0
        self.changes = []
        self.slower = 1.0
        """How much slower the canary's first tokens are."""
        self.missing = 0.0
        """Share of the canary's hits that it loses."""
        self.failing = 0.0
        """Share of the canary's requests that fail."""
        self.usage = 0.4
        self.unlike = 1.0
        """How much slower prompts below 25 are, whichever side they are on."""

    def run(self, seconds: float) -> "Traffic":
        end = self.now + seconds
        while self.now < end:
            self.now += 1.0
            for _ in range(int(self.rate)):
                start = self.rng.getrandbits(64)
                mine = self.canary.has(start)
                ttft = self.rng.lognormvariate(-2, 0.6) * (self.unlike if point(start) < 25 else 1.0)
                cached = 700 if self.rng.random() > (self.missing if mine else 0.0) else 0
                self.canary.observe(
                    self.now,
                    start,
                    ttft * (self.slower if mine else 1.0),
                    1000,
                    cached,
                    self.usage if mine else 0.4,
                    failed=mine and self.rng.random() < self.failing,
                    is_canary=mine,
                )
            self.changes += self.canary.step(self.now)
        return self

    @property
    def percents(self) -> list[float]:
        return [change.percent for change in self.changes]


@pytest.mark.parametrize("seed", range(5))
def test_one_that_is_no_worse_goes_through_every_stage_by_itself(seed):
    traffic = Traffic(Canary(TERMS, 0.0), seed=seed).run(400)
    assert traffic.percents == [5, 25, 50, 100]
    assert traffic.canary.phase is Phase.COMPLETE
    assert traffic.canary.reason == "complete"


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"slower": 2.0}, "ttft"),
        ({"missing": 0.3}, "hit_rate"),
        ({"failing": 0.2}, "errors"),
        ({"usage": 0.7}, "kv_usage"),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_a_breach_ends_it_within_two_minutes_and_says_why(fault, reason, seed):
    traffic = Traffic(Canary(TERMS, 0.0), seed=seed).run(140)  # well within the stage of 25 %
    assert traffic.canary.percent == 25
    for name, value in fault.items():
        setattr(traffic, name, value)
    began = traffic.now
    while traffic.canary.phase is Phase.RUNNING and traffic.now - began < 300:
        traffic.run(1)
    assert traffic.canary.phase is Phase.ROLLED_BACK
    assert traffic.now - began <= 120
    assert traffic.canary.reason == reason
    assert traffic.changes[-1].percent == 0
    assert traffic.changes[-1].why == traffic.canary.why != ""
    assert not any(traffic.canary.has(start) for start in range(1, 1000))


def test_one_that_is_bad_from_the_start_never_gets_beyond_its_first_stage():
    traffic = Traffic(Canary(TERMS, 0.0))
    traffic.slower = 3.0
    traffic.run(200)
    assert traffic.percents == [5, 0]
    assert traffic.canary.reason == "ttft"


def test_what_differed_before_is_not_its_fault():
    traffic = Traffic(Canary(TERMS, 0.0))
    traffic.unlike = 3.0  # the canary's stages are made of slow prompts first
    traffic.run(500)
    assert traffic.canary.phase is Phase.COMPLETE
    blamed = Traffic(Canary(TERMS.model_copy(update={"baseline_seconds": 0}), 0.0))
    blamed.unlike = 3.0
    blamed.run(200)
    assert blamed.canary.phase is Phase.ROLLED_BACK


def test_without_enough_requests_it_waits():
    traffic = Traffic(Canary(TERMS, 0.0), rate=2)
    traffic.run(600)  # 5 % of two a second: six requests a minute
    for phase, percent in ((Phase.BASELINE, 0), (Phase.RUNNING, 5)):
        assert (traffic.canary.phase, traffic.canary.percent) == (phase, percent)
        assert "requests of canary" in traffic.canary.told(traffic.now)["waiting_for"]
        traffic.run(900)
    traffic.run(900)
    assert traffic.canary.percent > 5, "what is older than the window counts where the window holds too few"


def test_by_hand_an_operator_has_the_last_word():
    canary = Canary(TERMS, 0.0)
    canary.promote(1.0)
    assert canary.percent == 5
    canary.pause()
    traffic = Traffic(canary)
    traffic.run(300)
    assert (canary.percent, canary.phase) == (5, Phase.PAUSED)
    canary.resume(traffic.now)
    traffic.run(30)
    assert canary.percent == 25
    canary.set_percent(40, traffic.now)
    assert canary.percent == 40
    traffic.run(100)
    assert canary.percent == 50
    canary.roll_back(traffic.now)
    assert (canary.percent, canary.phase, canary.reason) == (0, Phase.ROLLED_BACK, "by_hand")
    traffic.run(300)
    assert canary.percent == 0, "what an operator ended stays ended"
    canary.resume(traffic.now)
    assert canary.percent == 5
    canary.set_percent(0, traffic.now)
    assert canary.phase is Phase.ROLLED_BACK


def test_a_paused_one_still_ends_on_a_breach():
    traffic = Traffic(Canary(TERMS, 0.0)).run(60)
    traffic.canary.pause()
    traffic.failing = 0.5
    traffic.run(60)
    assert traffic.canary.phase is Phase.ROLLED_BACK


def test_without_automatic_stages_it_stays_where_it_is_put():
    traffic = Traffic(Canary(TERMS.model_copy(update={"automatic": False}), 0.0)).run(400)
    assert traffic.percents == [5]
    traffic.slower = 3.0
    traffic.run(120)
    assert traffic.canary.phase is Phase.ROLLED_BACK


def test_stages_need_not_end_at_all_of_the_traffic():
    traffic = Traffic(Canary(TERMS.model_copy(update={"stages": (10.0, 20.0)}), 0.0)).run(500)
    assert traffic.percents == [10, 20]
    assert traffic.canary.phase is Phase.RUNNING


def test_records_of_another_percentage_say_nothing():
    canary = Canary(TERMS, 0.0)
    canary.set_percent(100, 0.0)
    canary.observe(1.0, 7, 0.1, 10, 10, None, failed=True, is_canary=False)
    assert canary.told(1.0)["arms"]["canary"]["requests"] == 0
    canary.observe(1.0, 7, 0.1, 10, 10, None, failed=True, is_canary=True)
    assert canary.told(1.0)["arms"]["canary"]["requests"] == 1


@given(st.integers(1, 2**64 - 1), st.floats(0, 100), st.floats(0, 100))
def test_raising_the_percentage_moves_prompts_to_the_canary_only(start, one, other):
    low, high = Canary(TERMS, 0.0), Canary(TERMS, 0.0)
    low.percent, high.percent = sorted((one, other))
    assert high.has(start) or not low.has(start)


def test_the_split_is_even_and_of_the_prompts_start_alone():
    rng = Random(1)
    starts = [rng.getrandbits(64) for _ in range(20_000)]
    canary = Canary(TERMS, 0.0)
    canary.percent = 5.0
    share = sum(map(canary.has, starts)) / len(starts)
    assert 0.045 < share < 0.055
    system, one, other = (array("Q", [rng.getrandbits(64) for _ in range(n)]) for n in (8, 30, 40))
    assert root(system + one, 16) == root(system + other, 16)
    assert root(array("Q"), 16, 5) == 5
    assert not canary.has(0)


def test_chance_is_no_breach():
    """Both sides alike: of 300 comparisons of 100 requests none may end a canary."""
    rng = Random(3)
    for _ in range(300):
        sides = []
        for _ in range(2):
            figures = Figures()
            for _ in range(100):
                cached = 700 if rng.random() < 0.5 else 0
                figures.add(
                    rng.lognormvariate(-2, 0.8), 1000, cached, rng.random(), failed=rng.random() < 0.02
                )
            sides.append(figures)
        for check in (errors_breach, ttft_breach, hit_breach, usage_breach):
            assert check(*sides, TERMS, Before()) is None


def test_percentiles_are_exact_to_a_tenth():
    figures = Figures()
    for i in range(1, 1001):
        figures.add(i / 1000, 0, 0, None, failed=False)
    assert 0.95 <= figures.ttft_p95 <= 0.95 * 1.1
    assert figures.above(0.5) == pytest.approx(0.5, abs=0.05)
    assert Figures().ttft_p95 is None
    assert (Figures().hit_rate, Figures().failed, Figures().kv_usage) == (None, None, None)


def test_memory_is_bounded_by_slices():
    bands = Bands([5.0, 100.0])
    for second in range(20_000):
        bands.add(float(second), second % 2, 0.1, 1, 0, None, failed=False)
    assert len(bands.slices) <= 720


@pytest.mark.parametrize(
    "terms",
    [
        {"policy": "no_such"},
        {"policy": "round_robin", "stages": (5, 5)},
        {"policy": "round_robin", "stages": (50, 5)},
        {"params": {"alpha": "1"}},
        {"policy": "prefix_cost", "params": {"alpah": "1"}},
    ],
)
def test_terms_that_make_no_sense_are_refused(terms):
    with pytest.raises(ValueError):
        CanaryTerms(**terms)
