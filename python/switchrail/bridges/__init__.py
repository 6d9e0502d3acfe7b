"""Bridges: let models and engines of other libraries call Switchrail's backends."""
