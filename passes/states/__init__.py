"""Which states of operands give which state of a result: rules by family, and the solver that chooses among them."""
