//! The CRDs of etcd-druid and ours give the same answers, except where the documentation says so.

use std::collections::BTreeSet;

use serde_json::Value;

use super::server::{AdmissionResult, RealApiServer, Violation};
use crate::admission::{AdmissionCase, without_indexes};
use crate::{limits, rules, upstream};

/// Cases that use a field which only our CRDs have prove nothing about etcd-druid's.
fn uses_added_field(case: &AdmissionCase) -> bool {
    let resource = case.change.new_resource();
    let kind = resource["kind"].as_str().unwrap();
    let has = |path: &String| {
        let parts: Vec<&str> = path
            .split('.')
            .map(|part| part.trim_end_matches("[]"))
            .collect();
        has_path(resource, &parts)
    };
    // A field of the status is dropped, which changes no answer.
    let added = upstream::added_paths(kind);
    added
        .iter()
        .filter(|path| path.starts_with("spec"))
        .any(has)
}

fn has_path(value: &Value, path: &[&str]) -> bool {
    match (path, value) {
        ([], _) => true,
        (_, Value::Array(items)) => items.iter().any(|item| has_path(item, path)),
        ([first, rest @ ..], _) => value.get(*first).is_some_and(|field| has_path(field, rest)),
    }
}

/// What an answer says, except for the text of patterns, which are written differently.
fn meaning(answer: &AdmissionResult) -> Result<(), BTreeSet<(String, String)>> {
    let describe = |one: &Violation| {
        let message = one.message.split("should match").next().unwrap_or_default();
        (without_indexes(&one.field), message.to_owned())
    };
    match answer {
        Ok(_) => Ok(()),
        Err(all) => Err(all.iter().map(describe).collect()),
    }
}

#[tokio::test]
async fn etcd_druid_crds_give_the_same_answers() {
    let (ours, theirs) = (
        RealApiServer::start().await,
        RealApiServer::start_with_crds_of_etcd_druid().await,
    );
    let cases = limits::admission_cases()
        .into_iter()
        .chain(rules::admission_cases())
        .filter(|case| !uses_added_field(case));
    let (mut compared, mut different) = (0, Vec::new());
    for case in cases {
        let own = ours.submit(&case.change).await;
        let other = theirs.submit(&case.change).await;
        if meaning(&own) != meaning(&other) {
            let other = other.err();
            different.push(format!(
                "{}: {:#?}\netcd-druid: {other:#?}",
                case.name,
                own.err()
            ));
        }
        compared += 1;
    }
    // Only etcd-druid refuses to lower the replicas to a number other than 0.
    let (scaled_in, others): (Vec<_>, Vec<_>) = different
        .iter()
        .partition(|one| one.contains("Replicas can either be increased or be downscaled to 0"));
    assert!(
        others.is_empty(),
        "{}",
        others
            .iter()
            .map(|one| one.as_str())
            .collect::<Vec<_>>()
            .join("\n")
    );
    assert_eq!(scaled_in.len(), rules::SCALE_IN_CASES);
    assert!(compared > 300, "{compared}");
}
