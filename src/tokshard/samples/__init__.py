"""Samples of datasets: their index, and blends of them."""
