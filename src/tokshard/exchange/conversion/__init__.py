"""Conversion of other trainers' token files into an indexed dataset."""
