"""The canary on the simulated fleet, briefly: what `python -m bench canary` shows at length."""

import pytest

from bench import workloads
from bench.canary import STORIES, _run
from bench.profiles import profile
from bench.simulation import prepare
from bench.workloads import Shape
from proxy.canary_terms import CanaryTerms

BRIEF = {"baseline_seconds": 20, "settle_seconds": 5, "stage_seconds": 25, "min_requests": 40}


@pytest.fixture(scope="module")
def jobs():
    shape = Shape(rate=40, requests=4800, groups=800)
    return prepare(workloads.generate("shared", shape, 1), profile("h100x2-32b"))[0]


@pytest.mark.parametrize("story", [STORIES[0], *STORIES[2:]], ids=lambda story: story.name)
def test_a_bad_canary_is_gone_within_two_minutes_and_a_better_one_has_all(story, jobs):
    terms = CanaryTerms(policy=story.tried, **BRIEF)
    run = _run(story, jobs, terms, profile("h100x2-32b"), 4, 1)
    assert run["phase"] == story.ends.value
    assert run["as_it_should"]
    if story.is_bad:
        assert 0 < run["seconds_from_breach"] <= 120
        assert run["why"]
    else:
        assert [percent for _, percent in run["stages"]] == [5, 25, 50, 100]
