//! Every rule, held and broken, by the CEL an API server evaluates.

mod etcd;
mod tasks;

use std::collections::BTreeSet;

use serde_json::Value;
use steward_crds::rules as tables;

use crate::apiserver::ApiServer;

/// What happens to a resource.
pub(crate) enum Change {
    Create(Value),
    Update(Value, Value),
}

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

fn admit(server: &ApiServer, change: &Change) -> Result<Value, Vec<String>> {
    match change {
        Change::Create(new) => server.create(new),
        Change::Update(old, new) => server.update(old, new),
    }
}

/// `spec.etcd.urls[3]` as `spec.etcd.urls[]`.
fn generic(path: &str) -> String {
    path.split('[')
        .map(|part| {
            part.split_once(']')
                .map_or_else(|| part.to_owned(), |(_, rest)| format!("[]{rest}"))
        })
        .collect()
}

fn check(server: &ApiServer, case: &Case) {
    for (number, change) in case.held_by.iter().enumerate() {
        let outcome = admit(server, change);
        assert!(
            outcome.is_ok(),
            "held {number} of \"{}\": {outcome:?}",
            case.message
        );
    }
    for (number, change) in case.broken_by.iter().enumerate() {
        let wrong = admit(server, change).expect_err(case.message);
        let expected = format!("{}: {}", case.at, case.message);
        let seen: Vec<_> = wrong
            .iter()
            .map(|line| line.split_once(": ").expect("a path and a message"))
            .map(|(path, message)| format!("{}: {message}", generic(path)))
            .collect();
        assert!(
            seen.contains(&expected),
            "broken {number} of \"{expected}\": {seen:#?}"
        );
    }
}

fn check_all(server: &ApiServer, table: &[tables::Rule], cases: &[Case]) {
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
        check(server, case);
    }
}

#[test]
fn rules_of_etcd_refuse_what_they_say_and_nothing_else() {
    check_all(&ApiServer::etcd(), tables::ETCD, &etcd::cases());
}

#[test]
fn members_may_become_more_and_fewer() {
    for (number, change) in etcd::resizes().iter().enumerate() {
        let outcome = admit(&ApiServer::etcd(), change);
        assert!(outcome.is_ok(), "way {number}: {outcome:?}");
    }
}

#[test]
fn rules_of_copy_tasks_refuse_what_they_say_and_nothing_else() {
    check_all(&ApiServer::copy(), tables::COPY, &tasks::copy_cases());
}

#[test]
fn rules_of_ops_tasks_refuse_what_they_say_and_nothing_else() {
    check_all(&ApiServer::ops(), tables::OPS, &tasks::ops_cases());
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
