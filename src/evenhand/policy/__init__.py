"""Policies: chat format, model folder, decoder and sampler."""
