"""Integrations: the same sharing, faults, cache, weighing and audit inside other engines.

An engine of another house calls the tools itself. `desk.Desk` stands between it and an environment,
one desk a rollout; `functions` makes an environment of plain Python functions. Each engine has a
folder of its own, thin, through public seams or `super()`, with no copied code.
"""
