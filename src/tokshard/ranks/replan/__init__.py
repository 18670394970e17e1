"""Continuing a plan with another world size or another blend."""
