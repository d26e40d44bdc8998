"""From a cut program to its schedule, and the check of both."""
