"""One table on many ranks: each holds the rows of a range of the key hash; keys, rows and gradients travel."""
