"""Requests in words over real SQLite databases (AgentBench-DB in kind)."""

from evenhand.environments.database.tasks import DatabaseSuite

__all__ = ["DatabaseSuite"]
