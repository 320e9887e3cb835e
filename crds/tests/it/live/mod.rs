//! A real API server says to every trial what the emulator says, which all other tests ask.

mod odd;
mod server;

use std::collections::BTreeSet;

use serde_json::Value;

use crate::apiserver::{Answer, Like, place};
use crate::samples::samples;
use crate::trials::{Change, Expected, Trial};
use crate::{limits, rules};
use server::Server;

/// An empty text, which a server built with a newer Go than its own takes for a null and refuses: Kubernetes 1.20 built
/// with Go 1.19.
const EMPTY_TEXTS: [&str; 2] = [
    r#"etcd-everything.yaml, /spec/backup/store/provider = """#,
    r#"etcd-everything.yaml, /spec/backup/tls/serverTLSSecretRef = {"name":""}"#,
];

/// What was seen, by the names of trials.
#[derive(Default)]
struct Seen {
    accepted: Vec<String>,
    refused: Vec<String>,
    /// Decided by a rule alone, which the server does not know.
    left_out: Vec<String>,
    /// Refused only because the server takes an empty text for a null.
    misread: Vec<String>,
    differences: Vec<String>,
}

/// The samples as they are, and with what no sample has.
fn of_samples() -> impl Iterator<Item = Trial> {
    let odd = samples().into_iter().flat_map(|(name, sample)| {
        let strangers = odd::with_strangers(&sample);
        // The same for a sample that has every field.
        let nulls = odd::with_nulls(&sample);
        assert_ne!(strangers, sample, "{name}");
        [
            (format!("{name} with strangers"), strangers),
            (format!("{name} with nulls"), nulls),
            (name, sample),
        ]
    });
    odd.map(|(name, resource)| Trial {
        name,
        change: Change::Create(resource),
        expected: Expected::Stored,
    })
}

/// The places an answer complains about. Servers differ in whether they number the items of lists.
fn places(wrong: &[String]) -> BTreeSet<String> {
    let paths = wrong.iter().filter_map(|line| line.split_once(": "));
    // That none of several schemas fits is said of no place.
    let paths = paths.filter(|(path, _)| *path != "<nil>");
    paths
        .map(|(path, _)| place(path).replace("[]", ""))
        .collect()
}

/// Metadata is the server's own.
fn without_metadata(mut resource: Value) -> Value {
    if let Some(fields) = resource.as_object_mut() {
        fields.remove("metadata");
    }
    resource
}

/// Where two answers differ; `None` when they mean the same.
fn difference(trial: &Trial, emulated: Answer, real: &Answer) -> Option<String> {
    let emulated = emulated.map(without_metadata);
    let is_same = match (&emulated, real) {
        (Ok(emulated), Ok(real)) => emulated == real,
        (Err(emulated), Err(real)) => match &trial.expected {
            // Where a rule of the whole resource stands, servers of different age say differently.
            Expected::Broken { message, .. } => real.iter().any(|line| line.contains(message)),
            _ if places(emulated).is_empty() => emulated == real,
            _ => places(emulated) == places(real),
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

impl Seen {
    async fn send(&mut self, server: &Server, trial: Trial) {
        let emulated = trial.emulated(Like::Tolerant);
        let decided_without_rules = trial.emulated(Like::BeforeRules);
        if !server.knows_rules && emulated.is_err() && decided_without_rules.is_ok() {
            self.left_out.push(trial.name);
            return;
        }
        let real = server.answer(&trial.change).await;
        if emulated.is_ok() && real.as_ref().is_err_and(|wrong| is_misread(wrong)) {
            self.misread.push(trial.name);
            return;
        }
        self.differences.extend(difference(&trial, emulated, &real));
        match real {
            Ok(_) => self.accepted.push(trial.name),
            Err(_) => self.refused.push(trial.name),
        }
    }
}

#[tokio::test]
async fn a_real_api_server_answers_as_the_emulator_does() {
    let server = Server::start().await;
    let trials = of_samples()
        .chain(limits::trials())
        .chain(rules::trials())
        .collect::<Vec<_>>();
    let is_by_rule = |trial: &&Trial| matches!(trial.expected, Expected::Broken { .. });
    let is_refused = |trial: &&Trial| {
        use Expected::{Readable, Stored, Unreadable};
        !matches!(trial.expected, Stored | Readable | Unreadable)
    };
    let by_rule: Vec<_> = trials
        .iter()
        .filter(is_by_rule)
        .map(|trial| trial.name.clone())
        .collect();
    let (all, refused) = (trials.len(), trials.iter().filter(is_refused).count());

    let mut seen = Seen::default();
    for trial in trials {
        seen.send(&server, trial).await;
    }
    let Seen {
        differences,
        left_out,
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
    let wanted = if server.knows_rules {
        &[][..]
    } else {
        &by_rule
    };
    assert_eq!(left_out, wanted);
    assert_eq!(seen.refused.len(), refused - left_out.len());
    assert!(
        misread.is_empty() || *misread == EMPTY_TEXTS,
        "{misread:#?}"
    );
    assert_eq!(seen.accepted.len(), all - refused - misread.len());
    assert!(!seen.accepted.is_empty() && !seen.refused.is_empty());
}
