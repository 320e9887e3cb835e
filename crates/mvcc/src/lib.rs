//! Gives meaning to the buckets of an etcd database: revisions, key-values, leases, hashes.
