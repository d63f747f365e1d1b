"""Kernels as sums of products of radial profiles, and their fused averages over bags."""
