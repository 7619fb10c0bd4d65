"""Questions over twenty SQL databases, as InterCode asks them; read-only."""

from evenhand.environments.sql.suite import SqlSuite

__all__ = ["SqlSuite"]
