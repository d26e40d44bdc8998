"""How a group of devices computes a program together, all at once, and the solver that chooses it."""
