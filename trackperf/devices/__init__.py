"""Readings of the machine that a run is on."""
