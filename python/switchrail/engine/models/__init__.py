"""How transformers' model definitions reach the engine: a file per function contract, a table of families."""
