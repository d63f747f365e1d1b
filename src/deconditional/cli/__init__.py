"""The command ``deconditional``: demo, downscale and report."""
