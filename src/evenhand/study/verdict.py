"""The registered rule decides: whether a comparison passed, and why, in plain sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evenhand.study.metrics import Estimate, label
from evenhand.study.protocol import Protocol, Rule


@dataclass(frozen=True)
class RuleResult:
    """What became of one registered rule."""

    rule: Rule
    passed: bool | None
    """None while a run that it needs is unfinished."""
    sentence: str
    difference: Estimate | None


@dataclass(frozen=True)
class Verdict:
    """All rules together."""

    passed: bool | None
    """True when every rule passed; None while undecided."""
    sentence: str
    rules: tuple[RuleResult, ...]


def decide(
    protocol: Protocol,
    differences: Mapping[str, Mapping[str, Estimate | None]],
    amendments: int = 0,
) -> Verdict:
    """Apply the protocol's rules to differences[comparison][metric]."""
    rules = tuple(apply(protocol, rule, differences[rule.comparison]) for rule in protocol.rules)
    states = [result.passed for result in rules]
    passed = None if None in states else all(states)
    if len(rules) == 1:
        sentence = rules[0].sentence
    else:
        parts = [(states.count(True), "passed"), (states.count(False), "did not pass")]
        parts.append((states.count(None), "still undecided"))
        told = ", ".join(f"{n} {what}" for n, what in parts if n)
        sentence = f"Of {len(rules)} registered rules, {told}."
    if amendments:
        times = "once" if amendments == 1 else f"{amendments} times"
        sentence += f" The protocol was amended {times} after it was frozen."
    return Verdict(passed, sentence, rules)


def apply(protocol: Protocol, rule: Rule, differences: Mapping[str, Estimate | None]) -> RuleResult:
    """One rule on the differences of its comparison."""
    pair = protocol.comparison(rule.comparison)
    metric = label(protocol, rule.metric)
    needed = [rule.metric, *([rule.not_reversed] if rule.not_reversed else [])]
    found = {name: differences.get(name) for name in needed}
    difference = found[rule.metric]
    finished = [len(estimate.seeds) if estimate else 0 for estimate in found.values()]
    if difference is None or min(finished) < len(protocol.seeds):
        sentence = (
            f"Undecided: {pair.treatment} against {pair.control} on {metric} has"
            f" {min(finished)} of {len(protocol.seeds)} seed pairs finished."
        )
        return RuleResult(rule, None, sentence, difference)
    faults = []
    if not difference.mean >= rule.minimum:
        faults.append(f"the rule asks for at least {_points(rule.minimum)}")
    against = [seed for seed, value in difference.seeds.items() if not value > 0]
    if rule.all_seeds_positive and against:
        faults.append(f"{_seeds(against)} did not favour it")
    guard = found[rule.not_reversed] if rule.not_reversed else None
    if rule.not_reversed and guard is not None and not guard.mean >= 0:
        faults.append(
            f"{label(protocol, rule.not_reversed)} went the other way ({_signed(guard.mean)})"
        )
    name = pair.treatment[:1].upper() + pair.treatment[1:]
    side = "above" if difference.mean >= 0 else "below"
    same = _signed(difference.mean) == "0.0"
    compared = "level with" if same else f"{_points(abs(difference.mean))} {side}"
    body = (
        f"its {metric} was {compared} that of {pair.control}"
        f" (95 % interval {_signed(difference.low)} to {_signed(difference.high)})"
    )
    if faults:
        tail = _and(faults)
        sentence = f"{name} did not pass its registered rule: {body}, but {tail}."
        return RuleResult(rule, False, sentence, difference)
    reasons = [f"the rule asks for at least {_points(rule.minimum)}"]
    if rule.all_seeds_positive:
        count = len(difference.seeds)
        who = {1: "its one seed", 2: "both seeds"}.get(count, f"all {count} seeds")
        reasons.append(f"{who} favoured it")
    if rule.not_reversed and guard is not None:
        reasons.append(
            f"{label(protocol, rule.not_reversed)} was not reversed ({_signed(guard.mean)})"
        )
    sentence = f"{name} passed its registered rule: {body}; {_and(reasons)}."
    if difference.low <= 0:
        sentence += " The interval does not exclude zero."
    return RuleResult(rule, True, sentence, difference)


def _points(value: float) -> str:
    text = f"{100 * value:.1f}"
    return f"{text} point" if text == "1.0" else f"{text} points"


def _signed(value: float) -> str:
    text = f"{100 * value:+.1f}".replace("-", "−")
    return "0.0" if text in ("+0.0", "−0.0") else text


def _seeds(seeds: Sequence[int]) -> str:
    names = _and([str(seed) for seed in seeds])
    return f"seed {names}" if len(seeds) == 1 else f"seeds {names}"


def _and(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
