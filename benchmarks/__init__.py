"""Speed, as ratios to a named opponent that is measured in the same run.

pytest-benchmark compares the times of a run with those of an earlier one, and asv those of one
commit with another's on one machine; what is asked here is how far a time is from that of ``exp``,
of a dense formula or of another library in the same process, which neither has. What they would
carry, calling a function until a budget is spent and writing JSON, is twenty lines.
"""
