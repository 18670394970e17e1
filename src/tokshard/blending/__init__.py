"""Mixtures of sources: recipes, the exact order of a blend, its sizes, and the certificate of it."""
