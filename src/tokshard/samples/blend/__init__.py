"""Blends: recipe, weights, order, certificate, blend.json."""
