"""Each pass by itself, their manager, and the verifier."""
