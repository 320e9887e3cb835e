//! Verifies, creates and swaps etcd data directories.
