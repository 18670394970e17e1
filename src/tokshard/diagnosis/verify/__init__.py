"""Verifying: whether data sets, caches, blends and plans are what they were when they were written."""
