//! A real API server with the shipped CRDs accepts and rejects what it must.

mod answers;
mod published_samples;
mod server;
mod unusual_samples;
mod upstream;

use serde_json::{Value, json};

use crate::admission::{
    AdmissionCase, ExpectedAdmission, ResourceChange, sample_with, without_indexes,
};
use crate::limits::tasks::WITHOUT_TIMEOUTS;
use crate::samples::{is_readable, load_samples, roundtrip, stringify_numbers};
use crate::{limits, rules};
use server::{AdmissionResult, RealApiServer, Violation};

impl Violation {
    /// Whether it concerns this field or something in it.
    fn is_of(&self, field: &str) -> bool {
        let rest = self.field.trim_start_matches('.').strip_prefix(field);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    }

    /// For a rule at the root the server reports no field.
    fn is_of_rule(&self, at: &str, message: &str) -> bool {
        let field = without_indexes(&self.field.replace("<nil>", ""));
        field == at && self.message.ends_with(message)
    }
}

fn is_as_expected(expected: &ExpectedAdmission, answer: &AdmissionResult) -> bool {
    match (expected, answer) {
        (ExpectedAdmission::Stored, Ok(_)) | (ExpectedAdmission::NeverReadable, Err(_)) => true,
        (ExpectedAdmission::Readable, Ok(stored)) => is_readable(stored),
        (ExpectedAdmission::NeverReadable, Ok(stored)) => !is_readable(stored),
        (ExpectedAdmission::Rejected { field }, Err(all)) => all.iter().any(|one| one.is_of(field)),
        (ExpectedAdmission::FieldMissing { field }, Err(all)) => all
            .iter()
            .any(|one| one.field == *field && one.message.starts_with("Required value")),
        (ExpectedAdmission::RuleViolated { at, message }, Err(all)) => {
            all.iter().any(|one| one.is_of_rule(at, message))
        }
        _ => false,
    }
}

/// Asserts the answers to all cases, and that every rejection has the recorded text.
async fn check_cases(record: &str, cases: Vec<AdmissionCase>) {
    let server = RealApiServer::start().await;
    assert!(cases.iter().any(|case| case.expected.is_stored()));
    let (mut wrong, mut rejections) = (Vec::new(), Vec::new());
    for case in cases {
        let answer = server.submit(&case.change).await;
        if !is_as_expected(&case.expected, &answer) {
            wrong.push(format!("{}: {answer:#?}", case.name));
        }
        rejections.extend(answer.err().map(|all| (case.name, all)));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    answers::check(record, &server.version, &rejections);
}

#[tokio::test]
async fn schemas_reject_exactly_the_invalid_values() {
    check_cases("schemas.txt", limits::admission_cases()).await;
}

#[tokio::test]
async fn rules_reject_exactly_the_invalid_changes() {
    check_cases("rules.txt", rules::admission_cases()).await;
}

/// What the server stores for a resource.
async fn store(server: &RealApiServer, name: &str, resource: Value) -> Value {
    let answer = server.submit(&ResourceChange::Create(resource)).await;
    answer.unwrap_or_else(|errors| panic!("{name}: {errors:#?}"))
}

/// Asserts that no field of a sample was dropped or changed.
fn assert_contains(name: &str, stored: &Value, sample: &Value) {
    match (stored, sample) {
        (Value::Object(stored), Value::Object(sample)) => {
            let kept = sample
                .iter()
                .filter(|(key, value)| *key != "metadata" && !value.is_null());
            for (key, value) in kept {
                let found = stored
                    .get(key)
                    .unwrap_or_else(|| panic!("{name}: {key} was dropped"));
                assert_contains(name, found, value);
            }
        }
        (Value::Array(stored), Value::Array(sample)) => {
            assert_eq!(stored.len(), sample.len(), "{name}");
            for (stored, sample) in stored.iter().zip(sample) {
                assert_contains(name, stored, sample);
            }
        }
        _ => assert_eq!(stored, sample, "{name}"),
    }
}

#[tokio::test]
async fn samples_are_stored_whole_without_unknown_fields_and_nulls() {
    let server = RealApiServer::start().await;
    for (name, sample) in load_samples() {
        let stored = store(&server, &name, sample.clone()).await;
        assert_contains(&name, &stored, &sample);
        let mut rewritten = roundtrip(&stored);
        assert_eq!(
            stringify_numbers(&rewritten),
            stringify_numbers(&stored),
            "{name}"
        );
        rewritten["metadata"] = sample["metadata"].clone();
        store(&server, &name, rewritten).await;

        let with_unknown = unusual_samples::add_unknown_fields(&sample);
        assert_ne!(with_unknown, sample, "{name}");
        assert_eq!(store(&server, &name, with_unknown).await, stored, "{name}");
        let with_nulls = unusual_samples::add_nulls(&sample);
        assert_eq!(store(&server, &name, with_nulls).await, stored, "{name}");
    }
}

#[tokio::test]
async fn default_timeouts_are_stored() {
    let server = RealApiServer::start().await;
    let config = WITHOUT_TIMEOUTS.parse().unwrap();
    let task = sample_with("ops-snapshot.yaml", "/spec/config", Some(config));
    let stored = store(&server, "ops-snapshot.yaml", task).await;
    assert_eq!(
        stored["spec"]["config"]["onDemandSnapshot"],
        json!({ "type": "delta", "timeoutSecondsDelta": 60, "timeoutSecondsFull": 900 })
    );
}
