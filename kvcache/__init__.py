"""Blocks of the key-value cache: who holds them, which prefixes they keep, and the tensors behind them."""
