"""zbatch beside other batchers, each in an environment of its own; see ../README.md."""
