"""The words every layer speaks: errors, tensors, requests, streams, model configuration, backend protocols."""
