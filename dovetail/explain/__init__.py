"""A placement in sentences, what would change it, and what differs between two."""
