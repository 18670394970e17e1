"""Execution of units: in this process, in worker processes, on a Ray cluster."""
