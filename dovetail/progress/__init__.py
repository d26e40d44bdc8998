"""How long the phases of a call take, and what they read."""
