"""Bash over a work folder, every command in a jail of its own."""

from evenhand.environments.shell.suite import ShellSuite

__all__ = ["ShellSuite"]
