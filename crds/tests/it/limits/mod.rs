//! What the schemas reject, and which unusual values they accept.

mod etcd;
mod tasks;

use crate::admission::{AdmissionCase, AdmissionCases};

/// The cases of all claims.
pub(crate) fn admission_cases() -> Vec<AdmissionCase> {
    AdmissionCases::collect(&[etcd::CLAIMS, tasks::CLAIMS].concat())
}
