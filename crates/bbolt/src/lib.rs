//! Reads, checks and writes bbolt database files.
