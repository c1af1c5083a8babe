"""Measurements of sentence encoders: contestants, grids, raw records, metrics and reports."""
