"""The paper's tables and figures, each a module with ``run()``."""
