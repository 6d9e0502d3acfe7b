"""Scripts for peers, which run in the peers' own environments and import nothing from this repository."""
