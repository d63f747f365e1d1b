"""Speed, measured as ratios to a named opponent within one run."""
