"""MCP: any Model Context Protocol server as an environment, over stdio or streamable HTTP."""

from evenhand.integrations.mcp.connection import Connection, Server, stdio
from evenhand.integrations.mcp.environment import McpEnvironment, McpSuite

__all__ = ["Connection", "McpEnvironment", "McpSuite", "Server", "stdio"]
