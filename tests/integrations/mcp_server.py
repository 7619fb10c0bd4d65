"""A small MCP server over streamable HTTP, for the tests: python mcp_server.py PORT."""

import sys

from mcp.server import MCPServer
from mcp.types import ToolAnnotations

server = MCPServer("ledger")
TOTALS = {}


@server.tool(annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False))
def total(account: str) -> int:
    """What is in an account."""
    return TOTALS.get(account, 0)


@server.tool(annotations=ToolAnnotations(read_only_hint=False))
def add(account: str, amount: int) -> int:
    """Add to an account."""
    if amount < 0:
        raise ValueError("amounts are positive")
    TOTALS[account] = TOTALS.get(account, 0) + amount
    return TOTALS[account]


@server.tool(annotations=ToolAnnotations(read_only_hint=True, open_world_hint=True))
def rate() -> float:
    """A rate from elsewhere."""
    return 1.0


@server.tool()
def unknown() -> str:
    """Says nothing of itself."""
    return "?"


if __name__ == "__main__":
    server.run("streamable-http", port=int(sys.argv[1]))
