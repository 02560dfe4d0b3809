"""Pools and slots of the device and host tiers."""
