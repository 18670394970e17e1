"""What makes sample k: splits, sizes, the three arrays of an index, and Megatron's cache of them."""
