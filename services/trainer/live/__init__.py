"""How good live versions are: labels find their predictions, and a judge compares production with its predecessor."""
