"""Does freshness pay: what retraining more often is worth, on real flights and on a planted drift."""
