"""Models that make one vector or one score of a text: encoders, cross-encoders, decoders pooled at a token."""
