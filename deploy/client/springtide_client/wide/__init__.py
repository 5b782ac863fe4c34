"""The wide part of a model: what its rows hold, which slots a sample has, and its score in plain numpy."""
