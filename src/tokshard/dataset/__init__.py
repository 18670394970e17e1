"""Indexed datasets: PREFIX.bin, PREFIX.idx and their manifest, and the runs that build them."""
