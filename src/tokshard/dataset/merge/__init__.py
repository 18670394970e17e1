"""Concatenation of indexed datasets."""
