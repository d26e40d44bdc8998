"""Another order of operations, in which fewer bytes are alive at once: which may change places, and the best found."""
