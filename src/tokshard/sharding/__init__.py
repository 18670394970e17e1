"""Which samples each rank reads: topology, batch sizes over time, orders, and their inverses."""
