"""Traced programs and what was planned, kept on disk, so that a second start does neither trace nor plan again."""
