//! The programs that this project replaces, run for real on the same buckets, in both directions.

mod buckets;
mod etcdbrctl;

pub(crate) use etcdbrctl::Etcdbrctl;
