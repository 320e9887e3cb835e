//! Admission cases: changes of resources and the expected answer, shared by the emulator and a real API server.

use serde_json::Value;

use crate::api_emulator::{AdmissionResult, EmulatedApiServer, EmulationMode, normalize_path};
use crate::samples::{is_readable, load_sample, roundtrip};

/// A create or an update of a resource.
pub(crate) enum ResourceChange {
    Create(Value),
    Update(Value, Value),
}

impl ResourceChange {
    /// The resource after the change.
    pub(crate) fn new_resource(&self) -> &Value {
        match self {
            Self::Create(new) | Self::Update(_, new) => new,
        }
    }
}

/// Expected answer to a change.
pub(crate) enum ExpectedAdmission {
    /// Stored.
    Stored,
    /// Stored, and the types can deserialize it.
    Readable,
    /// Stored, but the types cannot deserialize it.
    Unreadable,
    /// Rejected; the answer names the field.
    Rejected { field: String },
    /// Rejected because the field is missing.
    FieldMissing { field: String },
    /// Rejected by the CEL rule at this path, with the message of the rule.
    RuleViolated {
        at: &'static str,
        message: &'static str,
    },
}

/// A change and its expected answer.
pub(crate) struct AdmissionCase {
    /// Description for the failure message.
    pub(crate) name: String,
    pub(crate) change: ResourceChange,
    pub(crate) expected: ExpectedAdmission,
}

impl AdmissionCase {
    /// The answer of the emulator.
    pub(crate) fn run_emulated(&self, mode: EmulationMode) -> AdmissionResult {
        EmulatedApiServer::for_resource(self.change.new_resource()).submit(&self.change, mode)
    }

    /// Asserts that the emulator gives the expected answer.
    pub(crate) fn check(&self) {
        let answer = self.run_emulated(EmulationMode::Strict);
        let is_as_expected = match (&self.expected, &answer) {
            (ExpectedAdmission::Stored, Ok(_)) => true,
            (ExpectedAdmission::Readable, Ok(stored)) => {
                roundtrip(stored);
                true
            }
            (ExpectedAdmission::Unreadable, Ok(stored)) => !is_readable(stored),
            (ExpectedAdmission::Rejected { field }, Err(errors)) => {
                errors.iter().any(|line| line.contains(field.as_str()))
            }
            (ExpectedAdmission::FieldMissing { field }, Err(errors)) => {
                let line = format!(".{field}: required");
                errors.iter().any(|error| error.ends_with(&line))
            }
            (ExpectedAdmission::RuleViolated { at, message }, Err(errors)) => {
                let broken = (normalize_path(at), *message);
                let reported = errors.iter().filter_map(|line| line.split_once(": "));
                let mut reported = reported.map(|(path, message)| (normalize_path(path), message));
                reported.any(|one| one == broken)
            }
            _ => false,
        };
        assert!(is_as_expected, "{}: {answer:#?}", self.name);
    }
}

/// Samples with one change each.
#[derive(Default)]
pub(crate) struct AdmissionCases(Vec<AdmissionCase>);

/// A claim about admission, as a function that adds the cases which prove it.
pub(crate) type AddCasesFn = fn(&mut AdmissionCases);

impl AdmissionCases {
    /// The cases of these claims.
    pub(crate) fn collect(claims: &[AddCasesFn]) -> Vec<AdmissionCase> {
        let mut cases = Self::default();
        for claim in claims {
            claim(&mut cases);
        }
        cases.0
    }

    /// The values are stored, and the types can read them.
    pub(crate) fn accepts(&mut self, name: &str, pointer: &str, values: &[Value]) {
        for value in values {
            self.add(name, pointer, Some(value), ExpectedAdmission::Readable);
        }
    }

    pub(crate) fn rejects(&mut self, name: &str, pointer: &str, values: &[Value]) {
        for value in values {
            let field = last_name(pointer);
            self.add(
                name,
                pointer,
                Some(value),
                ExpectedAdmission::Rejected { field },
            );
        }
    }

    /// The values are stored, but the types cannot read them.
    pub(crate) fn stores_unreadable(&mut self, name: &str, pointer: &str, values: &[Value]) {
        for value in values {
            self.add(name, pointer, Some(value), ExpectedAdmission::Unreadable);
        }
    }

    /// The field is required.
    pub(crate) fn requires(&mut self, name: &str, pointer: &str) {
        let field = last_name(pointer);
        self.add(
            name,
            pointer,
            None,
            ExpectedAdmission::FieldMissing { field },
        );
    }

    /// The field is optional.
    pub(crate) fn allows_missing(&mut self, name: &str, pointer: &str) {
        self.add(name, pointer, None, ExpectedAdmission::Stored);
    }

    fn add(
        &mut self,
        name: &str,
        pointer: &str,
        value: Option<&Value>,
        expected: ExpectedAdmission,
    ) {
        let shown = value.map_or_else(|| "missing".to_owned(), Value::to_string);
        self.0.push(AdmissionCase {
            name: format!("{name}, {pointer} = {shown}"),
            change: ResourceChange::Create(sample_with(name, pointer, value.cloned())),
            expected,
        });
    }
}

/// The last name in a JSON pointer.
fn last_name(pointer: &str) -> String {
    let mut parts = pointer.rsplit('/');
    let named = parts.find(|part| part.parse::<usize>().is_err());
    named.expect("a pointer has a name").to_owned()
}

/// The sample with one value at a JSON pointer, inserted if missing; `None` removes it.
pub(crate) fn sample_with(name: &str, pointer: &str, value: Option<Value>) -> Value {
    let mut resource = load_sample(name);
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    let parent = resource
        .pointer_mut(parent)
        .unwrap_or_else(|| panic!("{name} has no {parent}"));
    match (parent, value) {
        (Value::Array(items), Some(value)) => items[key.parse::<usize>().unwrap()] = value,
        (Value::Object(fields), Some(value)) => drop(fields.insert(key.to_owned(), value)),
        (Value::Object(fields), None) => drop(fields.remove(key).unwrap()),
        (other, _) => panic!("{pointer} is inside {other}"),
    }
    resource
}

/// Declares a test for each claim and the list of all claims. A claim that is not listed is dead code, which the
/// compiler rejects.
macro_rules! claims {
    ($($claim:ident),* $(,)?) => {
        pub(crate) const CLAIMS: &[crate::admission::AddCasesFn] = &[$($claim),*];

        mod run_emulated {
            $(
                #[test]
                fn $claim() {
                    let trials = crate::admission::AdmissionCases::collect(&[super::$claim]);
                    assert!(!trials.is_empty());
                    trials.iter().for_each(crate::admission::AdmissionCase::check);
                }
            )*
        }
    };
}
pub(crate) use claims;
