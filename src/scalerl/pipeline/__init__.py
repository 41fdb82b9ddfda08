"""Floor 5: the loop between engines. It knows them only by the protocols of floor 0, and needs no torch itself."""
