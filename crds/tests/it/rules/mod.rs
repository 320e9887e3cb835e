//! Every rule, held and broken, by the CEL an API server evaluates.

mod etcd;
mod tasks;

use std::collections::BTreeSet;

use mainstay_crds::rules as tables;

use crate::trials::{Change, Expected, Trial};

/// Changes on both sides of one rule.
pub(crate) struct Case {
    at: &'static str,
    message: &'static str,
    held_by: Vec<Change>,
    broken_by: Vec<Change>,
}

/// A case for the rule at a place whose message contains the words.
pub(crate) fn case(
    table: &'static [tables::Rule],
    at: &str,
    words: &str,
    held_by: Vec<Change>,
    broken_by: Vec<Change>,
) -> Case {
    let found: Vec<_> = table
        .iter()
        .filter(|rule| rule.at == at && rule.message.contains(words))
        .collect();
    let [rule] = found[..] else {
        panic!("{} rules at \"{at}\" say \"{words}\"", found.len())
    };
    Case {
        at: rule.at,
        message: rule.message,
        held_by,
        broken_by,
    }
}

impl Case {
    fn trials(self) -> impl Iterator<Item = Trial> {
        let Self { at, message, .. } = self;
        let held = self.held_by.into_iter().enumerate();
        let held = held.map(move |(number, change)| Trial {
            name: format!("held {number} of \"{at}: {message}\""),
            change,
            expected: Expected::Stored,
        });
        let broken = self.broken_by.into_iter().enumerate();
        held.chain(broken.map(move |(number, change)| Trial {
            name: format!("broken {number} of \"{at}: {message}\""),
            change,
            expected: Expected::Broken { at, message },
        }))
    }
}

/// Every way from one number of members to another.
fn resizes() -> Vec<Trial> {
    let resizes = etcd::resizes().into_iter().enumerate();
    let trial = |(number, change)| Trial {
        name: format!("way {number} to another size"),
        change,
        expected: Expected::Stored,
    };
    resizes.map(trial).collect()
}

/// Every trial of every rule, and what no rule minds.
pub(crate) fn trials() -> Vec<Trial> {
    let cases = [etcd::cases(), tasks::copy_cases(), tasks::ops_cases()];
    let mut trials: Vec<_> = cases.into_iter().flatten().flat_map(Case::trials).collect();
    trials.extend(resizes());
    trials
}

fn check_all(table: &[tables::Rule], cases: Vec<Case>) {
    let known: BTreeSet<_> = table.iter().map(|rule| (rule.at, rule.message)).collect();
    assert_eq!(
        known.len(),
        table.len(),
        "two rules at one place say the same"
    );
    let tried: BTreeSet<_> = cases.iter().map(|case| (case.at, case.message)).collect();
    assert_eq!(known, tried, "rules without a case");
    for case in cases {
        assert!(
            !case.held_by.is_empty() && !case.broken_by.is_empty(),
            "{}",
            case.message
        );
        case.trials().for_each(|trial| trial.check());
    }
}

#[test]
fn rules_of_etcd_refuse_what_they_say_and_nothing_else() {
    check_all(tables::ETCD, etcd::cases());
}

#[test]
fn members_may_become_more_and_fewer() {
    resizes().iter().for_each(Trial::check);
}

#[test]
fn rules_of_copy_tasks_refuse_what_they_say_and_nothing_else() {
    check_all(tables::COPY, tasks::copy_cases());
}

#[test]
fn rules_of_ops_tasks_refuse_what_they_say_and_nothing_else() {
    check_all(tables::OPS, tasks::ops_cases());
}

#[test]
fn no_rule_needs_more_than_an_api_server_of_1_25_has() {
    for rule in tables::ETCD.iter().chain(tables::COPY).chain(tables::OPS) {
        for newer in [
            "optional",
            "cel.bind",
            "quantity(",
            "ip(",
            "cidr(",
            "format.",
            "sets.",
        ] {
            assert!(!rule.rule.contains(newer), "{}", rule.rule);
        }
        assert!(
            !rule.rule.contains('\n') && !rule.message.contains('\n'),
            "{}",
            rule.message
        );
    }
}
