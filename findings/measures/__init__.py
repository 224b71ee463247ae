"""Functions that measure claims; conf/finding/*.yaml names them."""
