"""Custom models: Triton's `model.py` contract, each instance in a process of its own.

`instance.py` is the server's side, `child.py` the other; `frames.py` is what they say to each other. What the child
imports needs nothing but numpy and the standard library, so that it also runs in a model's own environment.
"""
