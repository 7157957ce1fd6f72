"""Our own token model: weights, model code, attention, sampling, and the runner that computes one step."""
