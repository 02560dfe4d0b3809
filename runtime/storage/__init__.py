"""L3: whole pages under their key."""
