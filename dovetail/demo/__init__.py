"""The built-in demo pipeline: a small FLUX, trained on pictures of coloured shapes."""
