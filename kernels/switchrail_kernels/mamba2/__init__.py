"""The selective state space of Mamba 2."""
