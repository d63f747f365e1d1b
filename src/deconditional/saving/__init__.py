"""Files: written whole or not at all, models in them, and how far long work is."""
