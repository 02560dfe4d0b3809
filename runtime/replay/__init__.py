"""Real traces through the real cache."""
