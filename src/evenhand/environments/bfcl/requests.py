"""What the generated users of the broker want, turn by turn, and the gold calls of it.

A request is written once, as words and as calls in the package's own notation, with slots in
braces, so that words, gold and pool come from the same draws: stocks, prices, amounts, orders.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

LOGIN = "trading_login(username='{user}', password='{password}')"
LOGIN_WORDS = " My user name is '{user}' and my password is '{password}'."


@dataclass(frozen=True)
class Turn:
    """One turn of a user's."""

    words: tuple[str, ...]
    """Ways to say it."""
    calls: tuple[str, ...]


@dataclass(frozen=True)
class Family:
    """One kind of dialogue."""

    name: str
    hard: bool
    """More than one call."""
    login: bool
    """Some function of it asks for a login."""
    turns: tuple[Turn, ...]


_QUOTE = "get_stock_info(symbol='{symbol}')"
_ORDER = "place_order(order_type='{side}', symbol='{symbol}', price={limit}, amount={amount})"
_MARKET = "place_order(order_type='{side}', symbol='{symbol}', price={price}, amount={amount})"
_ORDERED = Turn(
    (
        "{side} {amount} shares of {symbol} at {limit} dollars.",
        "Please place an order: {side} {amount} {symbol}, at {limit} each.",
    ),
    (_ORDER,),
)
_QUOTED = Turn(
    ("What does {symbol} trade at?", "Tell me the price and the volume of {symbol}."), (_QUOTE,)
)
FAMILIES = {
    family.name: family
    for family in (
        Family("quote", False, False, (_QUOTED,)),
        Family("order", False, True, (_ORDERED,)),
        Family(
            "details",
            False,
            False,
            (
                Turn(
                    ("Show me order {order}.", "What became of my order {order}?"),
                    ("get_order_details(order_id={order})",),
                ),
            ),
        ),
        Family(
            "cancel",
            False,
            False,
            (
                Turn(
                    ("Cancel order {order}.", "I do not want order {order} any more."),
                    ("cancel_order(order_id={order})",),
                ),
            ),
        ),
        Family(
            "watch",
            False,
            False,
            (
                Turn(
                    ("Put {symbol} on my watchlist.", "I want to keep an eye on {symbol}."),
                    ("add_to_watchlist(stock='{symbol}')",),
                ),
            ),
        ),
        Family(
            "unwatch",
            False,
            True,
            (
                Turn(
                    ("Take {watched} off my watchlist.", "I need not watch {watched} any more."),
                    ("remove_stock_from_watchlist(symbol='{watched}')",),
                ),
            ),
        ),
        Family(
            "deposit",
            False,
            True,
            (
                Turn(
                    ("Pay {money} dollars into my account.", "Fund my account with {money}."),
                    ("fund_account(amount={money})",),
                ),
            ),
        ),
        Family(
            "withdraw",
            False,
            True,
            (
                Turn(
                    ("Pay out {money} dollars.", "I want {money} from my account."),
                    ("withdraw_funds(amount={money})",),
                ),
            ),
        ),
        Family(
            "at_market",
            True,
            True,
            (
                Turn(
                    (
                        "{side} {amount} shares of {symbol} at its current price.",
                        "Look up {symbol} and place an order at that price: {side} {amount}.",
                    ),
                    (_QUOTE, _MARKET),
                ),
            ),
        ),
        Family(
            "company",
            True,
            False,
            (
                Turn(
                    ("How is {company} doing?", "Find {company} and tell me its price."),
                    ("get_symbol_by_name(name='{company}')", _QUOTE),
                ),
            ),
        ),
        Family(
            "then_order",
            True,
            True,
            (
                _QUOTED,
                Turn(
                    ("{side} {amount} at that price.", "Fine. {side} {amount} shares at it."),
                    (_MARKET,),
                ),
            ),
        ),
        Family(
            "regret",
            True,
            True,
            (
                _ORDERED,
                Turn(
                    ("No, cancel that order.", "I changed my mind: cancel it."),
                    ("cancel_order(order_id={new})",),
                ),
            ),
        ),
        Family(
            "assure",
            True,
            True,
            (
                _ORDERED,
                Turn(
                    ("Show me that order.", "Let me see the order as it stands."),
                    ("get_order_details(order_id={new})",),
                ),
            ),
        ),
        Family(
            "first_watched",
            True,
            True,
            (
                Turn(("What do I watch?", "Show me my watchlist."), ("get_watchlist()",)),
                Turn(
                    ("Take the first one off it.", "The first of them can go."),
                    ("remove_stock_from_watchlist(symbol='{watched}')",),
                ),
            ),
        ),
    )
}


def ask(
    family: Family, config: Mapping[str, Any], slots: Mapping[str, Any], rng: np.random.Generator
) -> tuple[list[str], list[list[str]], dict[str, Any]]:
    """(What the user says, the gold calls), turn by turn, and the slots that either names or that a
    gold call's result tells."""
    words = [turn.words[int(rng.integers(len(turn.words)))] for turn in family.turns]
    calls = [list(turn.calls) for turn in family.turns]
    if family.login and not config["authenticated"]:
        words[0] += LOGIN_WORDS
        calls[0].insert(0, LOGIN)
    every = " ".join([*words, *(call for turn in calls for call in turn)])
    if _QUOTE in every:
        every += " {price}"
    used = {name: value for name, value in slots.items() if "{" + name + "}" in every}
    return (
        [each.format(**slots) for each in words],
        [[call.format(**slots) for call in turn] for turn in calls],
        used,
    )
