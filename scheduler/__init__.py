"""When and where work runs: batching of tensor models, and the token engine."""
