"""YAML profiles, each value with its reason. Data only."""
