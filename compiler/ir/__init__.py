"""The intermediate representation: the program, its schedule, its signature, and what operations do to memory."""
