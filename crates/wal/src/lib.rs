//! Reads, checks and writes etcd write-ahead logs and raft snapshot files.
