"""The Helm chart: its values, and what Helm renders of them; needs no cluster."""
