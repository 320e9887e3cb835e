//! Real etcd, S3 and other servers for tests, and fault injection.
