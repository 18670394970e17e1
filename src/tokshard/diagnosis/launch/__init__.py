"""Megatron's launch commands, read without running anything."""
