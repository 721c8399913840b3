"""Ray Serve in front of `lca serve`: each replica owns one server on loopback and passes bytes through."""
