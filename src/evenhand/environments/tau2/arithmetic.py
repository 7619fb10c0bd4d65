"""What the package's `calculate` says of a sum, without `eval`: it would take powers of powers."""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable

MOST_CHARACTERS = 400
_OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}


def calculated(expression: str) -> str:
    """The value rounded to two places, as text; ValueError says what is wrong."""
    if not all(character in "0123456789+-*/(). " for character in expression):
        raise ValueError("Invalid characters in expression")
    if len(expression) > MOST_CHARACTERS:
        raise ValueError(f"Expression longer than {MOST_CHARACTERS} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # "1(2)" is refused below
            tree = ast.parse(expression.strip(), mode="eval")
        return str(round(float(_value(tree.body)), 2))
    except (SyntaxError, ArithmeticError, MemoryError, RecursionError) as error:
        raise ValueError(str(error) or type(error).__name__) from error


def _value(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left), _value(right))
    raise ValueError("Only numbers, + - * / and parentheses")
