"""The audit: from any engine's rollout logs, what is luck, coupled, reversed, dead or drifting."""

from evenhand.audit.builder import Builder
from evenhand.audit.finding import Finding
from evenhand.audit.live import Live
from evenhand.audit.log import CallSeen, Log
from evenhand.audit.read import read
from evenhand.audit.report import Report, audit, audit_log

__all__ = ["Builder", "CallSeen", "Finding", "Live", "Log", "Report", "audit", "audit_log", "read"]
