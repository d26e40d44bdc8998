"""From a cut program to its schedule."""
