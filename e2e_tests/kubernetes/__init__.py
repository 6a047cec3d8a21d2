"""The Helm chart: what it renders, which needs no cluster, and the platform on a real node (`make kubernetes`)."""
