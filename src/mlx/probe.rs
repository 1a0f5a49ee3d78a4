//! Measures what this machine's engine can move, in seconds: the figures that predictions rest on.
