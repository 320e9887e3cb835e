//! A real API server gives every admission case the same answer as the emulator, which the other tests use.

mod published_samples;
mod server;
mod unusual_samples;

use std::collections::BTreeSet;

use serde_json::Value;

use crate::admission::{AdmissionCase, ExpectedAdmission, ResourceChange};
use crate::api_emulator::{AdmissionResult, EmulationMode, normalize_path};
use crate::samples::load_samples;
use crate::{limits, rules};
use server::RealApiServer;

/// Cases with an empty string, which Kubernetes 1.20 built with Go 1.19 (newer than its own Go) treats as null and
/// rejects.
const EMPTY_STRING_CASES: [&str; 2] = [
    r#"etcd-everything.yaml, /spec/backup/store/provider = """#,
    r#"etcd-everything.yaml, /spec/backup/tls/serverTLSSecretRef = {"name":""}"#,
];

/// Results, by the names of cases.
#[derive(Default)]
struct ServerComparison {
    accepted: Vec<String>,
    rejected: Vec<String>,
    /// Rejected by a CEL rule alone, which this server does not support.
    skipped: Vec<String>,
    /// Rejected only because the server treats an empty string as null.
    misread: Vec<String>,
    differences: Vec<String>,
}

/// The samples unchanged, with unknown fields, and with nulls.
fn sample_cases() -> impl Iterator<Item = AdmissionCase> {
    let odd = load_samples().into_iter().flat_map(|(name, sample)| {
        let with_unknown = unusual_samples::add_unknown_fields(&sample);
        // Equal to the sample if it has every field.
        let nulls = unusual_samples::add_nulls(&sample);
        assert_ne!(with_unknown, sample, "{name}");
        [
            (format!("{name} with unknown fields"), with_unknown),
            (format!("{name} with nulls"), nulls),
            (name, sample),
        ]
    });
    odd.map(|(name, resource)| AdmissionCase {
        name,
        change: ResourceChange::Create(resource),
        expected: ExpectedAdmission::Stored,
    })
}

/// The paths that an answer names, without list indexes, because server versions differ there.
fn error_paths(errors: &[String]) -> BTreeSet<String> {
    let paths = errors.iter().filter_map(|line| line.split_once(": "));
    // The server reports a failed `anyOf` with the path `<nil>`.
    let paths = paths.filter(|(path, _)| *path != "<nil>");
    paths
        .map(|(path, _)| normalize_path(path).replace("[]", ""))
        .collect()
}

/// Removes the metadata, which the server fills in.
fn strip_metadata(mut resource: Value) -> Value {
    if let Some(fields) = resource.as_object_mut() {
        fields.remove("metadata");
    }
    resource
}

/// How two answers differ; `None` if they mean the same.
fn describe_difference(
    trial: &AdmissionCase,
    emulated: AdmissionResult,
    real: &AdmissionResult,
) -> Option<String> {
    let emulated = emulated.map(strip_metadata);
    let is_same = match (&emulated, real) {
        (Ok(emulated), Ok(real)) => emulated == real,
        (Err(emulated), Err(real)) => match &trial.expected {
            // Server versions report different paths for a rule at the root of the resource.
            ExpectedAdmission::RuleViolated { message, .. } => {
                real.iter().any(|line| line.contains(message))
            }
            _ if error_paths(emulated).is_empty() => emulated == real,
            _ => error_paths(emulated) == error_paths(real),
        },
        _ => false,
    };
    (!is_same).then(|| format!("{}:\nemulated {emulated:#?}\nreal {real:#?}", trial.name))
}

/// Nulls are dropped before validation, so an error about null comes from the misread empty string.
fn is_misread(errors: &[String]) -> bool {
    let of_null = r#"must be of type string: "null""#;
    errors.iter().all(|line| line.ends_with(of_null))
}

impl ServerComparison {
    async fn submit_case(&mut self, server: &RealApiServer, trial: AdmissionCase) {
        let emulated = trial.run_emulated(EmulationMode::Tolerant);
        let decided_without_rules = trial.run_emulated(EmulationMode::WithoutRules);
        if !server.supports_rules && emulated.is_err() && decided_without_rules.is_ok() {
            self.skipped.push(trial.name);
            return;
        }
        let real = server.submit(&trial.change).await;
        if emulated.is_ok() && real.as_ref().is_err_and(|errors| is_misread(errors)) {
            self.misread.push(trial.name);
            return;
        }
        self.differences
            .extend(describe_difference(&trial, emulated, &real));
        match real {
            Ok(_) => self.accepted.push(trial.name),
            Err(_) => self.rejected.push(trial.name),
        }
    }
}

#[tokio::test]
async fn real_api_server_admits_the_same_as_the_emulator() {
    let server = RealApiServer::start().await;
    let trials = sample_cases()
        .chain(limits::admission_cases())
        .chain(rules::admission_cases())
        .collect::<Vec<_>>();
    let is_by_rule =
        |trial: &&AdmissionCase| matches!(trial.expected, ExpectedAdmission::RuleViolated { .. });
    let is_refused = |trial: &&AdmissionCase| {
        use ExpectedAdmission::{Readable, Stored, Unreadable};
        !matches!(trial.expected, Stored | Readable | Unreadable)
    };
    let by_rule: Vec<_> = trials
        .iter()
        .filter(is_by_rule)
        .map(|trial| trial.name.clone())
        .collect();
    let (all, refused) = (trials.len(), trials.iter().filter(is_refused).count());

    let mut results = ServerComparison::default();
    for trial in trials {
        results.submit_case(&server, trial).await;
    }
    let ServerComparison {
        differences,
        skipped,
        misread,
        ..
    } = &results;
    assert!(
        differences.is_empty(),
        "{} of {all} differ:\n{}",
        differences.len(),
        differences.join("\n")
    );
    // A server without CEL skips exactly the cases that a rule alone decides.
    let expected_skips = if server.supports_rules {
        &[][..]
    } else {
        &by_rule
    };
    assert_eq!(skipped, expected_skips);
    assert_eq!(results.rejected.len(), refused - skipped.len());
    assert!(
        misread.is_empty() || *misread == EMPTY_STRING_CASES,
        "{misread:#?}"
    );
    assert_eq!(results.accepted.len(), all - refused - misread.len());
    assert!(!results.accepted.is_empty() && !results.rejected.is_empty());
}
