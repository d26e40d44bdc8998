"""Weight files under published names: matching them to a module's weights."""
