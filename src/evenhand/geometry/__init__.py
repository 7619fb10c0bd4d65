"""Geometry: what the rollouts' gradients have to do with each other, and weights made from it.

`factors`, `capture` and `projection` need torch; `spectrum` and `salt` work on a Gram matrix alone
and do not, so that a recipe that names them is checked without it.
"""
