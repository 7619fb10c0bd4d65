"""Questions over daily stock prices, with a filter and a calculator (ToolQA-Coffee in kind)."""

from evenhand.environments.tables.tasks import TablesSuite

__all__ = ["TablesSuite"]
