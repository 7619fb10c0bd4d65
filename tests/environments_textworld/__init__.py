"""TextWorld in an environment of its own: `make test-textworld`."""

NEEDED = "textworld is not in this environment: run `make test-textworld`"
