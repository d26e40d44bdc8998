"""Real model classes of diffusers and transformers: tiny ones that run, and published ones at full size on meta."""
