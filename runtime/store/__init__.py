"""Where weights come from and how they reach a device."""
