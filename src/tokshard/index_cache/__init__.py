"""Megatron's cache of indexes: names, entries, build or reuse."""
