"""Which states of operands give which state of a result: rules by family of operations, one file a family."""
