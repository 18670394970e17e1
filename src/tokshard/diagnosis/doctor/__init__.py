"""The doctor: what a Megatron job will find in its cache, and what its data arguments will do."""
