//! Every CEL rule, satisfied and violated.

mod etcd;
mod tasks;

use std::collections::BTreeSet;

use mainstay_crds::rules as tables;

use crate::admission::{AdmissionCase, ExpectedAdmission, ResourceChange};

/// Changes that satisfy and changes that violate one rule.
pub(crate) struct RuleCase {
    path: &'static str,
    message: &'static str,
    accepted: Vec<ResourceChange>,
    rejected: Vec<ResourceChange>,
}

/// The case of the rule at a path whose message contains the fragment.
pub(crate) fn rule_case(
    table: &'static [tables::CelRule],
    at: &str,
    fragment: &str,
    accepted: Vec<ResourceChange>,
    rejected: Vec<ResourceChange>,
) -> RuleCase {
    let found: Vec<_> = table
        .iter()
        .filter(|rule| rule.path == at && rule.message.contains(fragment))
        .collect();
    let [rule] = found[..] else {
        panic!("{} rules at \"{at}\" contain \"{fragment}\"", found.len())
    };
    RuleCase {
        path: rule.path,
        message: rule.message,
        accepted,
        rejected,
    }
}

impl RuleCase {
    fn into_admission_cases(self) -> impl Iterator<Item = AdmissionCase> {
        let Self {
            path: at, message, ..
        } = self;
        let held = self.accepted.into_iter().enumerate();
        let held = held.map(move |(number, change)| AdmissionCase {
            name: format!("satisfied {number} of \"{at}: {message}\""),
            change,
            expected: ExpectedAdmission::Stored,
        });
        let broken = self.rejected.into_iter().enumerate();
        held.chain(broken.map(move |(number, change)| AdmissionCase {
            name: format!("violated {number} of \"{at}: {message}\""),
            change,
            expected: ExpectedAdmission::RuleViolated { at, message },
        }))
    }
}

/// Resizes to fewer replicas other than 0.
pub(crate) const SCALE_IN_CASES: usize = 3;

/// Changes of the number of members.
fn resize_cases() -> Vec<AdmissionCase> {
    let resizes = etcd::resize_changes().into_iter().enumerate();
    let trial = |(number, change)| AdmissionCase {
        name: format!("resize {number}"),
        change,
        expected: ExpectedAdmission::Stored,
    };
    resizes.map(trial).collect()
}

/// All cases of all rules, and resizes, which no rule restricts.
pub(crate) fn admission_cases() -> Vec<AdmissionCase> {
    let cases = [etcd::cases(), tasks::copy_cases(), tasks::ops_cases()];
    let mut trials: Vec<_> = cases
        .into_iter()
        .flatten()
        .flat_map(RuleCase::into_admission_cases)
        .collect();
    trials.extend(resize_cases());
    trials
}

#[test]
fn every_rule_is_satisfied_and_violated_by_a_case() {
    let all = [
        (tables::ETCD, etcd::cases()),
        (tables::COPY, tasks::copy_cases()),
        (tables::OPS, tasks::ops_cases()),
    ];
    for (table, cases) in all {
        let known: BTreeSet<_> = table.iter().map(|rule| (rule.path, rule.message)).collect();
        assert_eq!(
            known.len(),
            table.len(),
            "two rules at one path have the same message"
        );
        let tried: BTreeSet<_> = cases.iter().map(|case| (case.path, case.message)).collect();
        assert_eq!(known, tried, "rules without a case");
        for case in cases {
            assert!(
                !case.accepted.is_empty() && !case.rejected.is_empty(),
                "{}",
                case.message
            );
        }
    }
}
