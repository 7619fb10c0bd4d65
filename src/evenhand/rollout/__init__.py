"""The agent loop: policy x environment x noise -> Rollouts."""
