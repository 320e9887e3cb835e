//! What schemas refuse, and what they let pass although it looks odd.

mod etcd;
mod tasks;

use crate::trials::{Trial, Trials};

/// Every trial of every claim.
pub(crate) fn trials() -> Vec<Trial> {
    Trials::of(&[etcd::CLAIMS, tasks::CLAIMS].concat())
}
