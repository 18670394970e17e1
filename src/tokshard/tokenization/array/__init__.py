"""Job arrays: many processes that each encode a share of the units, and one that puts the parts together."""
