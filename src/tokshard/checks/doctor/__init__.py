"""The doctor command: checks of a Megatron launch command against data and caches."""
