"""Other libraries' module paths and names, on zbatch."""
