"""Calls of our own functions as tasks of an existing Ray cluster."""
