"""Value types shared by all layers: ids, offsets, options, metadata log. No behaviour, no I/O."""
