"""Loops over products: the public functions inspect, verify, trace and diff."""
