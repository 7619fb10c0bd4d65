"""A calculator for text that a policy wrote: its own grammar, walked once, nothing evaluated.

    sum     = product (("+" | "-") product)*
    product = sign (("*" | "/" | "%") sign)*
    sign    = "-" sign | power
    power   = atom ("^" sign)?
    atom    = NUMBER | "(" sum ")" | NAME "(" sum ("," sum)* ")"

Numbers are floats; length and depth are bounded, so that every expression is answered at once.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable

MAX_LENGTH = 2_000
MAX_DEPTH = 40
DECIMALS = 4

_TOKEN = re.compile(r"\s*(?:(\d+(?:\.\d*)?(?:[eE][+-]?\d{1,3})?|\.\d+)|([a-z]+)|(.))", re.DOTALL)
FUNCTIONS: dict[str, Callable[[list[float]], float]] = {
    "sum": math.fsum,
    "mean": statistics.fmean,
    "median": statistics.median,
    "min": min,
    "max": max,
    "count": len,
    "abs": lambda values: abs(_one(values)),
    "sqrt": lambda values: math.sqrt(_one(values)),
    "round": lambda values: float(round(_one(values))),
}


class CannotCalculate(Exception):
    """One sentence for the policy."""


def calculate(expression: str) -> float:
    """The value, rounded to four decimals. Raises CannotCalculate."""
    if len(expression) > MAX_LENGTH:
        raise CannotCalculate(f"the expression is longer than {MAX_LENGTH} characters")
    reader = _Reader(expression)
    try:
        value = reader.sum(0)
        if reader.kind != "end":
            raise CannotCalculate(f"{reader.text!r} was not expected here")
        return round(_finite(value), DECIMALS)
    except ZeroDivisionError as error:
        raise CannotCalculate("division by zero") from error
    except (OverflowError, ValueError) as error:
        raise CannotCalculate("the result is not a finite real number") from error


class _Reader:
    """The expression's tokens, and a method for each rule of the grammar."""

    def __init__(self, expression: str) -> None:
        self._tokens: list[tuple[str, str]] = []
        for match in _TOKEN.finditer(expression.strip()):
            number, name, mark = match.groups()
            kind = "number" if number else "name" if name else "mark"
            self._tokens.append((kind, number or name or mark))
        self._tokens.append(("end", "the end"))
        self._place = 0

    @property
    def kind(self) -> str:
        return self._tokens[self._place][0]

    @property
    def text(self) -> str:
        return self._tokens[self._place][1]

    def sum(self, depth: int) -> float:
        if depth > MAX_DEPTH:
            raise CannotCalculate("too many parentheses in one another")
        value = self._product(depth)
        while (mark := self._take("+", "-")) is not None:
            right = self._product(depth)
            value = value + right if mark == "+" else value - right
        return value

    def _product(self, depth: int) -> float:
        value = self._sign(depth)
        while (mark := self._take("*", "/", "%")) is not None:
            right = self._sign(depth)
            value = (
                value * right if mark == "*" else value / right if mark == "/" else value % right
            )
        return value

    def _sign(self, depth: int) -> float:
        negative = False
        while self._take("-") is not None:
            negative = not negative
        value = self._power(depth)
        return -value if negative else value

    def _power(self, depth: int) -> float:
        value = self._atom(depth)
        if self._take("^") is None:
            return value
        if depth > MAX_DEPTH:
            raise CannotCalculate("too many powers in one another")
        return math.pow(value, self._sign(depth + 1))

    def _atom(self, depth: int) -> float:
        kind, text = self._tokens[self._place]
        if kind == "end":
            raise CannotCalculate("the expression ends too early")
        self._place += 1
        if kind == "number":
            return float(text)
        if text == "(":
            value = self.sum(depth + 1)
            self._expect(")")
            return value
        if kind == "name":
            if text not in FUNCTIONS:
                raise CannotCalculate(f"there is no function {text}: use {', '.join(FUNCTIONS)}")
            self._expect("(")
            values = [self.sum(depth + 1)]
            while self._take(",") is not None:
                values.append(self.sum(depth + 1))
            self._expect(")")
            return float(FUNCTIONS[text](values))
        raise CannotCalculate(f"{text!r} was not expected here")

    def _take(self, *marks: str) -> str | None:
        kind, text = self._tokens[self._place]
        if kind != "mark" or text not in marks:
            return None
        self._place += 1
        return text

    def _expect(self, mark: str) -> None:
        if self._take(mark) is None:
            raise CannotCalculate(f"{mark!r} was expected, not {self.text!r}")


def _one(values: list[float]) -> float:
    if len(values) != 1:
        raise CannotCalculate("this function takes one number")
    return values[0]


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise OverflowError
    return value
