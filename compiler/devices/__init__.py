"""What devices there are: their kinds, the rig that they make, what each has, and how fast it is."""
