"""Computes wide parts of a program by some rows at a time, which may change last bits: an option."""
