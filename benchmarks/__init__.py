"""How fast zbatch is, against what it replaces and against what the machine can do; see README.md here."""
