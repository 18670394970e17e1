"""Merging data sets: many pairs of files into one, without looking at a token twice."""
