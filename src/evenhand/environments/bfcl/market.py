"""A generated user's broker: the configuration of `TradingBot`, and what can be asked of it."""

from __future__ import annotations

from typing import Any

import numpy as np

CLASS = "TradingBot"
# As the class itself knows them; a test holds them against it.
COMPANIES = {
    "Apple": "AAPL",
    "Google": "GOOG",
    "Tesla": "TSLA",
    "Microsoft": "MSFT",
    "Nvidia": "NVDA",
    "Zeta Corp": "ZETA",
    "Alpha Tech": "ALPH",
    "Omega Industries": "OMEG",
    "Quasar Ltd.": "QUAS",
    "Neptune Systems": "NEPT",
    "Synex Solutions": "SYNX",
}
LISTED = 4
"""Stocks that a user's market has."""
NAMES = ("ana", "ben", "carla", "deniz", "elif", "farid", "greta", "hugo")


def draw(rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, Any]]:
    """A user's broker and the slots of a request to it: (configuration of the class, slots).

    The slots are possible: an order that is open, a stock that is listed or watched, and money
    that is there.
    """
    names = list(COMPANIES)
    listed = [names[int(n)] for n in rng.permutation(len(names))[:LISTED]]
    stocks = {COMPANIES[name]: _stock(rng) for name in listed}
    company, seen = listed[0], [COMPANIES[name] for name in listed[1:]]
    symbol = COMPANIES[company]
    orders = sorted({int(n) for n in rng.integers(10_000, 20_000, size=2)})
    slots = {
        "company": company,
        "symbol": symbol,
        "watched": seen[0],
        "price": stocks[symbol]["price"],
        "limit": round(float(rng.uniform(20, 900)), 2),
        "amount": int(rng.integers(1, 100)),
        "side": ("Buy", "Sell")[int(rng.integers(2))],
        "money": int(rng.integers(10, 1000)) * 10,
        "order": orders[int(rng.integers(len(orders)))],
        "new": orders[-1] + int(rng.integers(1, 90)),
        "user": NAMES[int(rng.integers(len(NAMES)))],
        "password": f"{int(rng.integers(1000, 10_000))}",
    }
    config = {
        "orders": {str(each): _order(each, seen, rng) for each in orders},
        "account_info": {
            "account_id": int(rng.integers(10_000, 100_000)),
            "balance": float(rng.integers(1000, 2000)) * 100,
            "binding_card": int(rng.integers(10**15, 10**16)),
        },
        "authenticated": bool(rng.integers(2)),
        "market_status": "Open",
        "order_counter": slots["new"],
        "stocks": stocks,
        "watch_list": seen[: int(rng.integers(1, len(seen) + 1))],
        "transaction_history": [],
    }
    return config, slots


def _stock(rng: np.random.Generator) -> dict[str, float]:
    price = round(float(rng.uniform(20, 900)), 2)
    return {
        "price": price,
        "percent_change": round(float(rng.normal(0, 0.3)), 2),
        "volume": round(float(rng.uniform(0.5, 4)), 3),
        "MA(5)": round(price * float(rng.uniform(0.97, 1.03)), 2),
        "MA(20)": round(price * float(rng.uniform(0.95, 1.05)), 2),
    }


def _order(number: int, symbols: list[str], rng: np.random.Generator) -> dict[str, Any]:
    return {
        "id": number,
        "order_type": ("Buy", "Sell")[int(rng.integers(2))],
        "symbol": symbols[int(rng.integers(len(symbols)))],
        "price": round(float(rng.uniform(20, 900)), 2),
        "amount": int(rng.integers(1, 100)),
        "status": ("Open", "Pending")[int(rng.integers(2))],
    }
