"""Which models exist, and in which state they are."""
