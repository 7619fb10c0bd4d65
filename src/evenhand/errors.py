"""The one small tree of errors. Each message is a sentence that names the place and the mend."""

from __future__ import annotations


class EvenhandError(Exception):
    """Root of every error that evenhand raises on purpose."""


class UserError(EvenhandError):
    """Bad input: the command line prints the sentence and exits with code 2."""


class RecordError(UserError):
    """A record file that is torn, of another version or the wrong shape; names file and line."""


class InfrastructureError(EvenhandError):
    """A tool or environment that broke outside the drawn noise: the rollout votes nowhere."""
