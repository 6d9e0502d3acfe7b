"""How transformers' model definitions reach the engine: one file per function contract, one table of families."""
