//! What schemas refuse, and what they let pass although it looks odd.

mod etcd;
mod tasks;

use crate::trials::{AdmissionCase, AdmissionCases};

/// Every trial of every claim.
pub(crate) fn admission_cases() -> Vec<AdmissionCase> {
    AdmissionCases::collect(&[etcd::CLAIMS, tasks::CLAIMS].concat())
}
