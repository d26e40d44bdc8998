"""How a group of devices computes a program together, all at once."""
