"""The arguments of a component's calls: what tells calls apart, which lengths differ, how they change devices."""
