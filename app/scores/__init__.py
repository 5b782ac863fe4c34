"""How well samples were predicted before they were learned."""
