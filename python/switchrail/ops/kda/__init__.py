"""Kimi delta attention."""
