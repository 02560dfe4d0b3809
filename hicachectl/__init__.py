"""hicachectl: the operator's tool for tiered prefix caches. Only the version lives here."""

__version__ = "0.1.0"
