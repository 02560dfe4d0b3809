"""Hosts made up for tests: `builder` writes their files, `shapes` names them."""
