"""Training: the group-relative trainer, supervised warm start, recipes and checkpoints."""
