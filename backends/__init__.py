"""What runs a model: one module or folder a framework. The words they share are in `backends.api`."""
