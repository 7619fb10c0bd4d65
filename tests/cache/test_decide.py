"""decide() over every combination of what it can be told."""

import itertools

import pytest

from evenhand.cache.decide import Asked, Known, Match, Refuse, Run, Serve, Wait, decide
from evenhand.cache.frames import FAILED
from evenhand.cache.policy import Mode, Policy, Tier
from evenhand.errors import UserError
from evenhand.tools import Effect

from .toys import entry

NOW = 1e9 + 100
ALL = (Tier.EXACT, Tier.FUZZY, Tier.TOOL)
ENTRIES = [
    None,
    *(
        entry("e", origin=origin, draw=draw, flags=flags, stored=stored)
        for origin in ("live", "recorded", "simulated")
        for draw in (-1, 3)
        for flags in (0, FAILED)
        for stored in ((NOW - 10, NOW - 1000, NOW + 1000) if draw < 0 else (NOW - 1000,))
    ),
]
POLICIES = [
    Policy(mode, tiers, failures=failures, ttl_s=ttl, refresh_rate=0.5)
    for mode in Mode
    for tiers in ([(Tier.EXACT,), ALL] if mode is Mode.REPLAY else [(Tier.EXACT,)])
    for failures in ("keep", "drop")
    for ttl in (None, 100.0)
]
ASKED = [
    Asked(effect, known, cacheable, must_run, uniform)
    for effect in (Effect.READS, Effect.VOLATILE, None)
    for known in (True, False)
    for cacheable in (True, False)
    for must_run in (True, False)
    for uniform in (0.1, 0.9)
]
NEAR = Match(entry("near"), 0.93)


def cases():
    for asked, policy in itertools.product(ASKED, POLICIES):
        for e, running in itertools.product(ENTRIES, (False, True)):
            for fuzzy, tool in ((None, None), (NEAR, None), (None, NEAR)):
                known = Known(NOW, e, running, fuzzy, tool)
                yield asked, known, policy, decide(asked, known, policy)


def test_laws():
    seen = set()
    for asked, known, policy, decision in cases():
        seen.add(type(decision))
        mode, e = policy.mode, known.entry
        if mode is Mode.BYPASS:
            assert decision == Run(reason="bypass")
        if mode is Mode.REPLAY:
            assert isinstance(decision, (Serve, Refuse))  # a live call is impossible
        if isinstance(decision, Serve):
            assert asked.known and asked.cacheable
            assert asked.effect not in (None, Effect.VOLATILE)
            assert decision.tier in policy.tiers
            if decision.tier is Tier.EXACT:
                assert decision.entry is e and e.origin != "simulated"
            if mode is not Mode.REPLAY:
                assert not asked.must_run
                if policy.failures == "drop":
                    assert not e.failed
                if policy.ttl_s and e.draw < 0:
                    assert abs(NOW - e.stored) < policy.ttl_s
        if isinstance(decision, Run) and decision.keep:
            assert asked.cacheable and asked.effect not in (None, Effect.VOLATILE)
            # A draw that siblings may have read is never drawn anew.
            if e is not None and e.draw >= 0 and e.origin != "simulated" and not asked.must_run:
                assert e.failed and policy.failures == "drop"
        if isinstance(decision, Wait):
            assert known.running
        if isinstance(decision, Refuse):
            assert mode is Mode.REPLAY or not asked.known
    assert seen == {Serve, Run, Wait, Refuse}


def test_the_default_keeps_a_failure_like_any_draw():
    failed = entry("e", flags=FAILED)
    asked = Asked(Effect.STOCHASTIC)
    assert decide(asked, Known(NOW, failed), Policy()) == Serve(failed, Tier.EXACT)
    assert isinstance(decide(asked, Known(NOW, failed), Policy(failures="drop")), Run)


def test_tiers_are_tried_best_first():
    policy = Policy(Mode.REPLAY, ALL)
    asked = Asked(Effect.READS)
    simulated = entry("e", origin="simulated")
    fuzzy, effort = Match(entry("f"), 0.95), Match(entry("t"), 0.2)
    assert decide(asked, Known(NOW, entry("e"), False, fuzzy, effort), policy).tier is Tier.EXACT
    assert decide(asked, Known(NOW, None, False, fuzzy, effort), policy) == Serve(
        fuzzy.entry, Tier.FUZZY, 0.95
    )
    assert decide(asked, Known(NOW, simulated, False, None, effort), policy) == Serve(
        simulated, Tier.TOOL
    )
    assert decide(asked, Known(NOW, None, False, None, effort), policy).similarity == 0.2
    refused = decide(asked, Known(NOW), policy)
    assert isinstance(refused, Refuse) and refused.code == "NOT_RECORDED"
    unknown = decide(Asked(None, known=False), Known(NOW), policy)
    assert isinstance(unknown, Refuse) and unknown.code == "UNKNOWN_TOOL"


def test_refresh_runs_a_sample_of_hits_and_no_draws():
    policy = Policy(Mode.REFRESH, refresh_rate=0.3)
    e, draw = entry("e"), entry("d", schedule="s")
    asked = Asked(Effect.READS, uniform=0.29)
    assert decide(asked, Known(NOW, e), policy) == Run(True, True, True, "refresh")
    assert isinstance(decide(asked, Known(NOW, draw), policy), Serve)
    assert isinstance(decide(asked, Known(NOW, e, running=True), policy), Serve)
    assert isinstance(decide(Asked(Effect.READS, uniform=0.3), Known(NOW, e), policy), Serve)


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"mode": "rekord"}, "rekord"),
        ({"tiers": ("exact", "fuzzy")}, "siblings"),
        ({"mode": "replay-only", "tiers": ("magic",)}, "magic"),
        ({"failures": "retry"}, "retry"),
        ({"fuzzy_threshold": 1.2}, "fuzzy_threshold"),
        ({"lease_s": 0}, "lease_s"),
        ({"ttl_s": float("nan")}, "ttl_s"),
    ],
)
def test_a_policy_says_what_is_wrong(fields, names):
    with pytest.raises(UserError, match=names):
        Policy(**fields)
