"""The weights of a component: what they are assigned, what its module shows, and whether somebody changed them."""
