"""Traced programs kept on disk, so that a second start does not trace again."""
