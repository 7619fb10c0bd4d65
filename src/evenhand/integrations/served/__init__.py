"""A policy behind an OpenAI-compatible server."""

from evenhand.integrations.served.collect import collect
from evenhand.integrations.served.policy import Reply, Served, trainable

__all__ = ["Reply", "Served", "collect", "trainable"]
