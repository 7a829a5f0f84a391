"""Value types shared by all layers: identities, offsets, stream options. No behaviour, no I/O."""
