"""Attention over the paged pool: one file an implementation, all with the interface of `ops.Attention`."""
