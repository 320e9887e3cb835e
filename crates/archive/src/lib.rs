//! Snapshot names, chains, delta files and compression of a backup.
