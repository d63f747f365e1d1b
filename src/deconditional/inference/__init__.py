"""Objectives and posteriors, one module per kind of inference."""
