"""What people put on top of a pipeline by an option: another backend of attention, a cache of denoising steps."""
