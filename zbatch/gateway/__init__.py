"""HTTP in front of a cluster: what is asked there becomes calls of a client, and their outcomes answers."""
