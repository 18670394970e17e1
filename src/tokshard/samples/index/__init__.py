"""Indexes of the samples of datasets, and the cache in which Megatron looks for them."""
