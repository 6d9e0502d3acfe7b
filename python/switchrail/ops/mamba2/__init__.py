"""The state-space dual form of Mamba 2."""
