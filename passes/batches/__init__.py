"""Micro-batches: the pictures of a call in parts, which go through the segments of a layer split in turn."""
