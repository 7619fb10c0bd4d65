"""verifiers in an environment of its own: `make test-verifiers`."""

NEEDED = "verifiers pins mcp==2.0.0: `make test-verifiers` builds it an environment of its own"
