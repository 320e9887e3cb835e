//! A real API server says to every trial what the emulator says, which all other tests ask.

mod odd;
mod server;

use std::collections::BTreeSet;

use serde_json::Value;

use crate::apiserver::{AdmissionResult, EmulationMode, normalize_path};
use crate::samples::load_samples;
use crate::trials::{ResourceChange, ExpectedAdmission, AdmissionCase};
use crate::{limits, rules};
use server::RealApiServer;

/// An empty text, which a server built with a newer Go than its own takes for a null and refuses: Kubernetes 1.20 built
/// with Go 1.19.
const EMPTY_STRING_CASES: [&str; 2] = [
    r#"etcd-everything.yaml, /spec/backup/store/provider = """#,
    r#"etcd-everything.yaml, /spec/backup/tls/serverTLSSecretRef = {"name":""}"#,
];

/// What was seen, by the names of trials.
#[derive(Default)]
struct ServerComparison {
    accepted: Vec<String>,
    rejected: Vec<String>,
    /// Decided by a rule alone, which the server does not know.
    skipped: Vec<String>,
    /// Refused only because the server takes an empty text for a null.
    misread: Vec<String>,
    differences: Vec<String>,
}

/// The samples as they are, and with what no sample has.
fn sample_cases() -> impl Iterator<Item = AdmissionCase> {
    let odd = load_samples().into_iter().flat_map(|(name, sample)| {
        let strangers = odd::add_unknown_fields(&sample);
        // The same for a sample that has every field.
        let nulls = odd::add_nulls(&sample);
        assert_ne!(strangers, sample, "{name}");
        [
            (format!("{name} with strangers"), strangers),
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

/// The places an answer complains about. Servers differ in whether they number the items of lists.
fn error_paths(wrong: &[String]) -> BTreeSet<String> {
    let paths = wrong.iter().filter_map(|line| line.split_once(": "));
    // That none of several schemas fits is said of no place.
    let paths = paths.filter(|(path, _)| *path != "<nil>");
    paths
        .map(|(path, _)| normalize_path(path).replace("[]", ""))
        .collect()
}

/// Metadata is the server's own.
fn strip_metadata(mut resource: Value) -> Value {
    if let Some(fields) = resource.as_object_mut() {
        fields.remove("metadata");
    }
    resource
}

/// Where two answers differ; `None` when they mean the same.
fn describe_difference(trial: &AdmissionCase, emulated: AdmissionResult, real: &AdmissionResult) -> Option<String> {
    let emulated = emulated.map(strip_metadata);
    let is_same = match (&emulated, real) {
        (Ok(emulated), Ok(real)) => emulated == real,
        (Err(emulated), Err(real)) => match &trial.expected {
            // Where a rule of the whole resource stands, servers of different age say differently.
            ExpectedAdmission::RuleViolated { message, .. } => real.iter().any(|line| line.contains(message)),
            _ if error_paths(emulated).is_empty() => emulated == real,
            _ => error_paths(emulated) == error_paths(real),
        },
        _ => false,
    };
    (!is_same).then(|| format!("{}:\nemulated {emulated:#?}\nreal {real:#?}", trial.name))
}

/// Nulls are dropped before anything is looked at: nobody can have sent one.
fn is_misread(wrong: &[String]) -> bool {
    let of_null = r#"must be of type string: "null""#;
    wrong.iter().all(|line| line.ends_with(of_null))
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
        if emulated.is_ok() && real.as_ref().is_err_and(|wrong| is_misread(wrong)) {
            self.misread.push(trial.name);
            return;
        }
        self.differences.extend(describe_difference(&trial, emulated, &real));
        match real {
            Ok(_) => self.accepted.push(trial.name),
            Err(_) => self.rejected.push(trial.name),
        }
    }
}

#[tokio::test]
async fn a_real_api_server_answers_as_the_emulator_does() {
    let server = RealApiServer::start().await;
    let trials = sample_cases()
        .chain(limits::admission_cases())
        .chain(rules::admission_cases())
        .collect::<Vec<_>>();
    let is_by_rule = |trial: &&AdmissionCase| matches!(trial.expected, ExpectedAdmission::RuleViolated { .. });
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

    let mut seen = ServerComparison::default();
    for trial in trials {
        seen.submit_case(&server, trial).await;
    }
    let ServerComparison {
        differences,
        skipped,
        misread,
        ..
    } = &seen;
    assert!(
        differences.is_empty(),
        "{} of {all} differ:\n{}",
        differences.len(),
        differences.join("\n")
    );
    // Exactly the trials a rule alone decides, and those only on a server that knows no rules.
    let wanted = if server.supports_rules {
        &[][..]
    } else {
        &by_rule
    };
    assert_eq!(skipped, wanted);
    assert_eq!(seen.rejected.len(), refused - skipped.len());
    assert!(
        misread.is_empty() || *misread == EMPTY_STRING_CASES,
        "{misread:#?}"
    );
    assert_eq!(seen.accepted.len(), all - refused - misread.len());
    assert!(!seen.accepted.is_empty() && !seen.rejected.is_empty());
}
