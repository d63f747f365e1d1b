"""Zones: polygons and points from tables with geometry, beside fields on grids."""
