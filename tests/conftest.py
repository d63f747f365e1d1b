"""Settings shared by all tests."""

from hypothesis import settings

# The first call of a compiled function takes longer than any deadline; the same examples every
# time make a failure one that anybody can repeat.
settings.register_profile("deconditional", deadline=None, derandomize=True)
settings.load_profile("deconditional")
