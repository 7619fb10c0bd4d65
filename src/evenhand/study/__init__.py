"""Studies: a frozen protocol, arms x seeds in parallel processes, metrics and a verdict."""
