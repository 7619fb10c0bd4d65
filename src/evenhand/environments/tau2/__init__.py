"""tau2-bench: customers of a shop, an airline and a telephone company, and a tiny mock domain."""

from evenhand.environments.tau2.suite import Tau2Suite, airline, mock, retail, telecom

__all__ = ["Tau2Suite", "airline", "mock", "retail", "telecom"]
